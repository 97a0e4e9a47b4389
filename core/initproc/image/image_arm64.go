//go:build linux

package image

import _ "embed"

//go:embed bin/init-arm64.gz
var compressed []byte
