package bwrap

import (
	"bytes"
	"fmt"
	"strings"
)

// coveredNames are the files of /etc that we replace, in the order of their mounts.
var coveredNames = []string{"group", "hostname", "hosts", "machine-id", "passwd", "profile", "resolv.conf"}

// machineID stands for every sandbox: the host's own would tell sandboxes of
// one host that they are neighbours.
const machineID = "5a4db0c5a4db0c5a4db0c5a4db0c5a4d\n"

const hosts = "127.0.0.1 localhost " + Hostname + "\n::1 localhost ip6-localhost ip6-loopback\n"

// nobody is the id that everything unmapped appears as.
const nobody = 65534

func etcContent(name string, spec Spec) []byte {
	switch name {
	case "group":
		return []byte(group(spec.Identity))
	case "hostname":
		return []byte(Hostname + "\n")
	case "hosts":
		return []byte(hosts)
	case "machine-id":
		return []byte(machineID)
	case "passwd":
		return []byte(passwd(spec.Identity, spec.home()))
	case "profile":
		return spec.Host.Profile
	default: // resolv.conf
		return spec.Host.ResolvConf
	}
}

// passwd names the commands' user, so that whoami and every language's idea of
// "the current user" work for an id that the host itself has no name for.
func passwd(id Identity, home string) string {
	var out strings.Builder
	if !id.Root() {
		out.WriteString("root:x:0:0:root:/root:/usr/sbin/nologin\n")
	}
	fmt.Fprintf(&out, "%[1]s:x:%[2]d:%[3]d:%[1]s:%[4]s:/bin/bash\n", id.User(), id.UID, id.GID, home)
	if id.UID != nobody {
		fmt.Fprintf(&out, "nobody:x:%d:%d:nobody:/nonexistent:/usr/sbin/nologin\n", nobody, nobody)
	}
	return out.String()
}

func group(id Identity) string {
	var out strings.Builder
	out.WriteString("root:x:0:\n")
	if id.GID != 0 {
		fmt.Fprintf(&out, "sandbox:x:%d:\n", id.GID)
	}
	if id.GID != nobody {
		fmt.Fprintf(&out, "nogroup:x:%d:\n", nobody)
	}
	return out.String()
}

// slowTests are lines of /etc/profile, as Debian and those that come from it have
// them, which start a program to learn what bash knows; and the same without.
// Every command begins with this file, and takes a fifth longer for that program.
// Other shells know no EUID, so that they go the old way.
var slowTests = strings.NewReplacer(
	"\nif [ \"$(id -u)\" -eq 0 ]; then\n", "\nif [ \"${EUID:-$(id -u)}\" -eq 0 ]; then\n",
	"\nif [ \"`id -u`\" -eq 0 ]; then\n", "\nif [ \"${EUID:-`id -u`}\" -eq 0 ]; then\n",
)

// profile returns the host's /etc/profile without its slow tests, and nil when it
// has none or may not be the whole file.
func profile(host []byte) []byte {
	quick := []byte(slowTests.Replace(string(host)))
	if bytes.Equal(quick, host) || len(host) >= maxEtcFile {
		return nil
	}
	return quick
}
