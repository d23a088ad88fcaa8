//go:build mips || mips64 || ppc64 || s390x

package mss

import _ "embed"

//go:embed objects/mss_bpfeb.o.gz
var zipped []byte
