//go:build 386 || amd64 || arm || arm64 || loong64 || mips64le || mipsle || ppc64le || riscv64

package mss

import _ "embed"

//go:embed objects/mss_bpfel.o.gz
var zipped []byte
