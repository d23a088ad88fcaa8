package localsocket

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"longhaul/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

const (
	somebody = 65533 // users of the tests
	nobody   = 65534
)

// TestDirectories: the owner of a directory can replace a socket in it, even
// with the sticky bit set. It failed at 1818be3, in internal/run/control.
func TestDirectories(t *testing.T) {
	nettest.RequireRoot(t)
	dir := t.TempDir()
	mine, foreign := filepath.Join(dir, "mine"), filepath.Join(dir, "foreign")
	nettest.Must(t, os.Mkdir(mine, 0o700))
	nettest.Must(t, os.Mkdir(foreign, 0o700))
	nettest.Must(t, os.Chown(foreign, nobody, nobody))
	sticky := filepath.Join(dir, "sticky")
	nettest.Must(t, os.Mkdir(sticky, 0o700))
	nettest.Must(t, os.Chown(sticky, nobody, nobody))
	nettest.Must(t, os.Chmod(sticky, 0o777|os.ModeSticky))
	temporary := filepath.Join(dir, "temporary")
	nettest.Must(t, os.Mkdir(temporary, 0o700))
	nettest.Must(t, os.Chmod(temporary, 0o777|os.ModeSticky))
	open := filepath.Join(dir, "open")
	nettest.Must(t, os.Mkdir(open, 0o700))
	nettest.Must(t, os.Chmod(open, 0o777))
	myLink, foreignLink := filepath.Join(dir, "my-link"), filepath.Join(dir, "foreign-link")
	nettest.Must(t, os.Symlink(mine, myLink))
	nettest.Must(t, os.Symlink(mine, foreignLink))
	nettest.Must(t, os.Lchown(foreignLink, nobody, nobody))
	for path, want := range map[string]string{
		mine:                          "",
		filepath.Join(dir, "new/two"): "",
		temporary:                     "",
		myLink:                        "",
		foreign:                       "is user 65534's",
		sticky:                        "is user 65534's",
		foreignLink:                   "is user 65534's",
		open:                          "can be written by others",
	} {
		err := MakeDirectory(path)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", filepath.Base(path), err, want)
		}
	}
}

// TestServers: a client refuses a socket that another user serves. It failed at
// 1818be3, in internal/run/control.
func TestServers(t *testing.T) {
	nettest.RequireRoot(t)
	nettest.CheckLeaks(t)
	for _, test := range []struct {
		name           string
		server, client int
		refused        bool
	}{
		{"own", nobody, nobody, false},
		{"root's", 0, nobody, false},
		{"another user's", somebody, nobody, true},
		{"root asks another user", somebody, 0, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := nettest.OpenTempDir(t)
			nettest.Must(t, os.Chmod(dir, 0o777))
			path := filepath.Join(dir, "s")
			var l net.Listener
			nettest.Must(t, nettest.AsUser(test.server, func() (err error) {
				l, err = net.Listen("unix", path)
				return err
			}))
			defer l.Close()
			nettest.Must(t, os.Chmod(path, 0o666))
			err := nettest.AsUser(test.client, func() error {
				conn, err := net.Dial("unix", path)
				if err != nil {
					return err
				}
				defer conn.Close()
				return CheckServer(conn.(*net.UnixConn))
			})
			if test.refused != errors.Is(err, ErrForeign) || !test.refused && err != nil {
				t.Errorf("user %d asks user %d: %v", test.client, test.server, err)
			}
		})
	}
}
