//go:build linux

package image

import _ "embed"

//go:embed bin/init-amd64.gz
var compressed []byte
