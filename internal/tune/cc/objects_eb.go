//go:build mips || mips64 || ppc64 || s390x

package cc

import "embed"

// byteOrder marks the objects for this machine.
const byteOrder = "bpfeb"

//go:embed objects/*_bpfeb.o.gz
var embedded embed.FS
