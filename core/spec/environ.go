package spec

import "slices"

// defaultPath is Debian's, for root and for everybody else.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// reserved is how names begin that no author can use: the core hands bash what
// its script needs under them.
const reserved = "__sandbox_"

// carried are the variables that have a carrier.
var carried = []string{"PATH", "BASH_ENV"}

// Carrier is the name under which a variable comes to bash a second time, out of
// the login files' sight.
func Carrier(name string) string { return reserved + name }

// Login is what a sandbox makes of the user that commands run as.
type Login struct {
	// Home is the path of the user's home.
	Home string
	// User is the name that /etc/passwd has for the user id.
	User string
	// Shell is the path of bash inside.
	Shell string
}

// Environ returns the whole environment of the command as sorted NAME=value
// strings: the variables that every command has, and Env above them.
func (c Command) Environ(login Login) []string {
	variables := map[string]string{
		"PATH":     defaultPath,
		"HOME":     login.Home,
		"LANG":     "C.UTF-8",
		"AI_AGENT": "eve",
		"USER":     login.User,
		"LOGNAME":  login.User,
		"SHELL":    login.Shell,
		// No terminal: programs are not to write what only one understands.
		"TERM": "dumb",
	}
	if c.Pty != nil {
		variables["TERM"] = "xterm-256color"
	}
	if c.TimeZone != nil {
		variables["TZ"] = *c.TimeZone
	}
	for name, value := range c.Env {
		if value == nil {
			delete(variables, name)
		} else {
			variables[name] = *value
		}
	}
	out := make([]string, 0, len(variables))
	for name, value := range variables {
		out = append(out, name+"="+value)
	}
	slices.Sort(out)
	return out
}
