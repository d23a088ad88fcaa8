package cc

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"longhaul/test/nettest"
)

func TestModuleNames(t *testing.T) {
	var name unix.Utsname
	nettest.Must(t, unix.Uname(&name))
	root := t.TempDir()
	dir := filepath.Join(root, unix.ByteSliceToString(name.Release[:]))
	nettest.Must(t, os.Mkdir(dir, 0o755))
	nettest.Must(t, os.WriteFile(filepath.Join(dir, "modules.dep"), []byte(
		"kernel/net/ipv4/tcp_vegas.ko.zst:\nkernel/net/ipv4/tcp_diag.ko: kernel/net/ipv4/inet_diag.ko\nupdates/dkms/tcp_bbr3.ko:\n"), 0o644))
	nettest.Must(t, os.WriteFile(filepath.Join(dir, "modules.builtin"), []byte("kernel/net/ipv4/tcp_cubic.ko\n"), 0o644))
	if got := moduleNames(root); !slices.Equal(got, []string{"vegas", "bbr3", "cubic"}) {
		t.Errorf("the modules are %v", got)
	}
	if got := moduleNames(filepath.Join(root, "missing")); got != nil {
		t.Errorf("a host without modules has %v", got)
	}
}
