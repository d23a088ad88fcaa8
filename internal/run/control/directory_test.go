package control

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"longhaul/test/nettest"
)

func TestSocketsIn(t *testing.T) {
	table := filepath.Join(t.TempDir(), "unix")
	nettest.Must(t, os.WriteFile(table, []byte(`Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 101 /run/longhaul/site-b.sock
0000000000000000: 00000003 00000000 00000000 0001 03 102 /run/longhaul/control.sock
0000000000000000: 00000002 00000000 00010000 0001 01 103 /run/longhaul/control.sock.4711
0000000000000000: 00000002 00000000 00010000 0001 01 104 /run/longhaul/lab.sock
0000000000000000: 00000002 00000000 00010000 0001 01 105 /run/longhaul/below/control.sock
0000000000000000: 00000002 00000000 00010000 0001 01 106 /run/other/control.sock
0000000000000000: 00000002 00000000 00010000 0001 01 107 @/run/longhaul/abstract.sock
0000000000000000: 00000003 00000000 00000000 0001 03 108
`), 0o644))
	got, err := socketsIn(table, "/run/longhaul")
	nettest.Must(t, err)
	if want := []string{"/run/longhaul/control.sock", "/run/longhaul/site-b.sock"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if _, err := socketsIn(filepath.Join(t.TempDir(), "none"), "/run/longhaul"); err == nil {
		t.Error("a missing table is no error")
	}
}

// TestSocketsOfKernel holds the format of the kernel's table.
func TestSocketsOfKernel(t *testing.T) {
	path, l := listen(t)
	defer l.Close()
	got, err := socketsIn(procNetUnix, filepath.Dir(path))
	if err != nil || !slices.Equal(got, []string{path}) {
		t.Errorf("got %v, %v; want %s", got, err, path)
	}
}

func TestPIDOf(t *testing.T) {
	path, l := listen(t)
	s := Serve(l, quiet, Handlers{})
	defer s.Close()
	if pid, err := PIDOf(t.Context(), path); err != nil || pid != os.Getpid() {
		t.Errorf("got %d, %v; want %d", pid, err, os.Getpid())
	}
}
