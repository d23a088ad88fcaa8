//go:build 386 || amd64 || arm || arm64 || loong64 || mips64le || mipsle || ppc64le || riscv64

package cc

import "embed"

// byteOrder marks the objects for this machine.
const byteOrder = "bpfel"

//go:embed objects/*_bpfel.o.gz
var embedded embed.FS
