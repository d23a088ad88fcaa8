package kernel_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"longhaul/internal/sys/kernel"
)

func TestLacksModule(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string // of the sentence; empty for the error as it is
	}{
		{fmt.Errorf("create: %w", unix.EOPNOTSUPP), "a pair needs the kernel module veth (CONFIG_VETH)"},
		{unix.ENOENT, "a pair needs the kernel module veth (CONFIG_VETH)"},
		{unix.EEXIST, ""},
		{unix.EPERM, ""},
		{nil, ""},
	} {
		err := kernel.LacksModule(tt.err, "a pair", "veth", "CONFIG_VETH")
		var unsupported *kernel.ErrUnsupported
		switch {
		case tt.want == "" && err != tt.err:
			t.Errorf("%v became %v", tt.err, err)
		case tt.want != "" && (!errors.As(err, &unsupported) || !strings.HasPrefix(err.Error(), tt.want)):
			t.Errorf("%v became %v, want %s", tt.err, err, tt.want)
		}
	}
}
