//go:build linux

package initproc

import (
	"time"

	"github.com/evelandhq/sandbox-bwrap/core/initproc/wire"
)

// census tells how many processes there are but init and the opener, and for how
// long there has been none. If there are some, tellQuiet tells when they are gone.
func (s *server) census(id uint64) {
	defer s.guard(id)
	// Nobody is reaped between the look and the note, or the news would be missed.
	s.forking.Lock()
	defer s.forking.Unlock()
	m := wire.Message{Kind: wire.KindCensus, ID: id, Left: s.others()}
	if m.Left == 0 {
		m.QuietMs = int(time.Since(s.lastDeath).Milliseconds())
	}
	s.wanted.Store(m.Left > 0)
	s.conn.Send(m)
}

// tellQuiet says that nothing runs any more, if somebody waits for that. Every
// process becomes a child of init, or ends before one that does, so the last of
// them is reaped here.
func (s *server) tellQuiet() {
	if !s.wanted.Load() {
		return
	}
	s.forking.Lock()
	defer s.forking.Unlock()
	if s.others() == 0 && s.wanted.Swap(false) {
		s.conn.Send(wire.Message{Kind: wire.KindQuiet})
	}
}

// others counts the processes there are but init and the opener. The caller holds forking.
func (s *server) others() (n int) {
	for _, pid := range s.proc.pids() {
		if pid != 1 && pid != s.opener {
			n++
		}
	}
	return n
}
