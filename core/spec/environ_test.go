package spec

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCommand_Environ(t *testing.T) {
	login := Login{Home: Workspace, User: "somebody", Shell: "/b/bash"}
	own := []string{
		"AI_AGENT=eve", "HOME=/workspace", "LANG=C.UTF-8", "LOGNAME=somebody",
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"SHELL=/b/bash", "TERM=dumb", "USER=somebody",
	}
	require.Equal(t, own, Command{}.Environ(login))

	zone, empty := "Asia/Tokyo", ""
	require.Equal(t, slices.Insert(slices.Clone(own), 7, "TZ=Asia/Tokyo"), Command{TimeZone: &zone}.Environ(login))
	require.Contains(t, Command{TimeZone: &empty}.Environ(login), "TZ=")

	// The author's win, whatever they do.
	cmd := Command{TimeZone: &zone, Env: map[string]*string{
		"A": &empty, "TZ": &empty, "USER": &zone, "AI_AGENT": nil, "HOME": nil, "LANG": nil,
		"LOGNAME": nil, "PATH": nil, "SHELL": nil, "TERM": nil, "NEVER": nil,
	}}
	require.Equal(t, []string{"A=", "TZ=", "USER=Asia/Tokyo"}, cmd.Environ(login))
}
