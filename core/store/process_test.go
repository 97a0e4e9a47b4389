package store

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The test binary plays other processes when it is told so.
func TestMain(m *testing.M) {
	if role := os.Getenv("STORE_ROLE"); role != "" {
		if err := play(role, os.Getenv("STORE_DIR")); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const templateFiles = 40

func fillTemplate(dir string) error {
	for i := range templateFiles {
		sub := filepath.Join(dir, strconv.Itoa(i%8))
		if err := os.MkdirAll(sub, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(sub, strconv.Itoa(i)), make([]byte, 1000), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func play(role, dir string) error {
	ctx := context.Background()
	s, err := Open(dir)
	if err != nil {
		return err
	}
	switch role {
	case "lead": // begins to build a template and never gets further
		st, _, err := s.BeginTemplate(ctx, TemplateRef{Key: "t"}, nil)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(st.Workspace().Path(), "half"), nil, 0o600); err != nil {
			return err
		}
		fmt.Println("ready")
		select {}
	case "prewarm":
		st, reused, err := s.BeginTemplate(ctx, TemplateRef{Key: "t"}, nil)
		if err != nil {
			return err
		}
		if !reused {
			if err := fillTemplate(st.Workspace().Path()); err != nil {
				return err
			}
			if err := st.Publish(ctx); err != nil {
				return err
			}
		}
		fmt.Println("reused", reused)
	case "create":
		ws, err := s.OpenSession(ctx, "s", NewSession{Template: &TemplateRef{Key: "t"}})
		if err != nil {
			return err
		}
		fmt.Println(ws.Strategy(), count(ws.Path()))
	case "confine": // sessions with a policy, one after another, to be killed anywhere
		for i := 0; ; i++ {
			ws, err := s.OpenSession(ctx, strconv.Itoa(i), NewSession{NetworkPolicy: "deny-all"})
			if err != nil {
				return err
			}
			if err := ws.Close(); err != nil {
				return err
			}
			if i == 0 {
				fmt.Println("ready")
			}
		}
	case "churn": // everything, over and over, to be killed anywhere
		for i := 0; ; i++ {
			st, reused, err := s.BeginTemplate(ctx, TemplateRef{Key: "t", Revision: strconv.Itoa(i)}, nil)
			if err != nil {
				return err
			}
			if !reused {
				if err := fillTemplate(st.Workspace().Path()); err != nil {
					return err
				}
				if err := st.Publish(ctx); err != nil {
					return err
				}
			}
			ws, err := s.OpenSession(ctx, "s", NewSession{Template: &TemplateRef{Key: "t", Revision: strconv.Itoa(i)}})
			if err != nil {
				return err
			}
			if err := ws.SetNetworkPolicy("deny-all"); err != nil {
				return err
			}
			if err := s.DeleteSession(ctx, ws.ID()); err != nil {
				return err
			}
			if i == 0 {
				fmt.Println("ready")
			}
		}
	}
	return nil
}

func count(dir string) (n int) {
	_ = filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			n++
		}
		return nil
	})
	return n
}

func process(t *testing.T, role, dir string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "STORE_ROLE="+role, "STORE_DIR="+dir)
	return cmd
}

// together runs n processes of a role at once and returns what they said.
func together(t *testing.T, n int, role, dir string) (said []string) {
	t.Helper()
	type answer struct {
		out []byte
		err error
	}
	answers := make(chan answer, n)
	for range n {
		go func() {
			out, err := process(t, role, dir).CombinedOutput()
			answers <- answer{out, err}
		}()
	}
	for range n {
		a := <-answers
		require.NoError(t, a.err, "%s", a.out)
		said = append(said, strings.TrimSpace(string(a.out)))
	}
	return said
}

func startReady(t *testing.T, role, dir string) *exec.Cmd {
	t.Helper()
	cmd := process(t, role, dir)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ready\n", line)
	return cmd
}

func TestProcesses_OneTemplateOneSession(t *testing.T) {
	s := open(t)
	built := 0
	for _, said := range together(t, 6, "prewarm", s.dir) {
		if said == "reused false" {
			built++
		}
	}
	require.Equal(t, 1, built)
	made := 0
	for _, said := range together(t, 6, "create", s.dir) {
		strategy, files, _ := strings.Cut(said, " ")
		require.Equal(t, strconv.Itoa(templateFiles), files, "an incomplete session was seen")
		if strategy != string(Existing) {
			made++
		}
	}
	require.Equal(t, 1, made)
}

func TestProcesses_KilledLeaderBlocksNobody(t *testing.T) {
	s := open(t)
	leader := startReady(t, "lead", s.dir)
	waiting := make(chan error, 1)
	go func() {
		st, reused, err := s.BeginTemplate(t.Context(), TemplateRef{Key: "t"}, nil)
		if err == nil && reused {
			err = fmt.Errorf("nobody published")
		}
		if err == nil && count(st.Workspace().Path()) != 0 {
			err = fmt.Errorf("the leader's files are there")
		}
		if err == nil {
			err = st.Publish(t.Context())
		}
		waiting <- err
	}()
	require.NoError(t, leader.Process.Kill())
	_ = leader.Wait()
	require.NoError(t, <-waiting)
}

func TestProcesses_KilledMakerLeavesNoSessionWithoutItsPolicy(t *testing.T) {
	for range 12 {
		s := open(t)
		cmd := startReady(t, "confine", s.dir)
		end := time.NewTimer(time.Duration(rand.IntN(20)) * time.Millisecond)
		<-end.C
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait()

		there, err := s.Sessions()
		require.NoError(t, err)
		require.NotEmpty(t, there)
		for _, e := range there {
			ws, err := s.Attach(t.Context(), e.ID)
			require.NoError(t, err)
			require.Equal(t, "deny-all", ws.NetworkPolicy())
			require.NoError(t, ws.Close())
		}
		// The one that was under way: its staging, and what was on record of it.
		require.NoError(t, os.RemoveAll(s.dir))
		require.NoError(t, s.ensure())
	}
}

func TestProcesses_KilledAnywhere(t *testing.T) {
	s := open(t)
	for range 12 {
		cmd := startReady(t, "churn", s.dir)
		end := time.NewTimer(time.Duration(rand.IntN(60)) * time.Millisecond)
		<-end.C
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait()

		st, reused, err := s.BeginTemplate(t.Context(), TemplateRef{Key: "t"}, nil)
		require.NoError(t, err)
		if !reused {
			require.NoError(t, fillTemplate(st.Workspace().Path()))
			require.NoError(t, st.Publish(t.Context()))
		}
		// Whatever the dead process left is either complete or not there.
		ws, err := s.OpenSession(t.Context(), "s", NewSession{Template: &TemplateRef{Key: "t"}})
		require.NoError(t, err)
		require.Equal(t, templateFiles, count(ws.Path()))
		require.NoError(t, s.DeleteSession(t.Context(), ws.ID()))
		require.NoError(t, ws.Close())
		entries, err := os.ReadDir(filepath.Join(s.dir, "templates"))
		require.NoError(t, err)
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), ".") {
				require.Equal(t, templateFiles, count(filepath.Join(s.dir, "templates", e.Name())), "a template is complete")
			}
		}
	}
	// Trash, stagings of ids that nobody asked for again and temporary files are
	// left, and nothing else.
	for _, dir := range []string{"sessions", "templates", "metadata/sessions", "metadata/templates"} {
		left, err := filepath.Glob(filepath.Join(s.dir, dir, ".*"))
		require.NoError(t, err)
		for _, path := range left {
			require.NoError(t, os.RemoveAll(path))
		}
	}
}
