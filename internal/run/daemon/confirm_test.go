package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair"
	"longhaul/internal/run/config"
	"longhaul/internal/words/remedy"
	"longhaul/test/nettest"
)

func configOf(t *testing.T, text string) *config.Config {
	t.Helper()
	c, err := config.Loader{}.Parse(t.Context(), "/etc/longhaul/longhaul.yaml", []byte(text))
	nettest.Must(t, err)
	return c
}

const (
	firstText  = "tunnels: [{name: a, listen: '127.0.0.1:1', forward: '127.0.0.1:2'}]\n"
	secondText = "tunnels: [{name: a, listen: '127.0.0.1:1', forward: '127.0.0.1:3'}]\n"
)

func testConfirmation(t *testing.T) (c *confirmation, states *[]string) {
	states = &[]string{}
	note := func(_, _, _, state, _ string) { *states = append(*states, state) }
	return &confirmation{log: slog.New(slog.DiscardHandler), note: note, file: stateFile{filepath.Join(t.TempDir(), "new", "state.json")}}, states
}

// texts is what the file has, in a word.
func texts(t *testing.T, f stateFile) string {
	t.Helper()
	u, err := f.read()
	nettest.Must(t, err)
	switch {
	case u == nil:
		return "none"
	case len(u.Files) != 1:
		return fmt.Sprintf("%d files", len(u.Files))
	}
	return map[string]string{firstText: "first", secondText: "second"}[string(u.Files[0].Text)]
}

func TestConfirmation(t *testing.T) {
	first, second := configOf(t, firstText), configOf(t, secondText)
	tried := config.Files{{Path: "longhaul.yaml", Text: []byte("tried")}}
	for _, tt := range []struct {
		name   string
		do     func(c *confirmation) error
		state  string // empty: confirmed
		file   string
		events string
	}{
		{"nothing", func(c *confirmation) error { return c.confirm() }, "", "none", ""},
		{"unconfirmed", func(c *confirmation) error { err := c.begin(first, tried); c.wait(time.Hour); return err }, Unconfirmed, "first", "unconfirmed"},
		{"confirmed", func(c *confirmation) error {
			err := c.begin(first, tried)
			c.wait(time.Hour)
			return errors.Join(err, c.confirm())
		}, "", "none", "unconfirmed confirmed"},
		{"a second one keeps what the first goes back to", func(c *confirmation) error {
			err := c.begin(first, tried)
			c.wait(time.Hour)
			err = errors.Join(err, c.begin(second, tried))
			c.wait(time.Hour)
			return err
		}, Unconfirmed, "first", "unconfirmed unconfirmed"},
		{"one that was not put into force", func(c *confirmation) error { err := c.begin(first, tried); c.failed(); return err }, "", "none", ""},
		{"a second one that was not", func(c *confirmation) error {
			err := c.begin(first, tried)
			c.wait(time.Hour)
			err = errors.Join(err, c.begin(second, tried))
			c.failed()
			return err
		}, Unconfirmed, "first", "unconfirmed"},
		{"after going back the next one", func(c *confirmation) error {
			err := c.begin(first, tried)
			c.wait(time.Hour)
			c.stop()
			c.enter(RolledBack, time.Time{}, "")
			err = errors.Join(err, c.begin(first, tried))
			c.wait(time.Hour)
			return err
		}, Unconfirmed, "first", "unconfirmed rolled-back unconfirmed"},
		{"confirmed after a file that could not be read", func(c *confirmation) error {
			c.enter(CannotReturn, time.Time{}, "")
			err := errors.Join(os.MkdirAll(filepath.Dir(c.file.path), 0o700), os.WriteFile(c.file.path, []byte("{"), 0o600))
			return errors.Join(err, c.confirm())
		}, "", "none", "cannot-return confirmed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, states := testConfirmation(t)
			defer c.stop()
			nettest.Must(t, tt.do(c))
			state := ""
			if now := c.status(); now != nil {
				state = now.State
			}
			if got := texts(t, c.file); state != tt.state || got != tt.file || strings.Join(*states, " ") != tt.events {
				t.Errorf("the state is %q with file %q after %q, want %q with %q after %q", state, got, *states, tt.state, tt.file, tt.events)
			}
			if waits := c.over() != nil; waits != (tt.state == Unconfirmed) {
				t.Errorf("it waits: %v", waits)
			}
			if refused := c.refuseUpgrade() != nil; refused != (tt.state == Unconfirmed) {
				t.Errorf("it refuses an upgrade: %v", refused)
			}
		})
	}
}

// TestConfirmationEnds holds when the time is over, also after another reload --confirm.
func TestConfirmationEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := testConfirmation(t)
		over := func() bool {
			synctest.Wait()
			select {
			case <-c.over():
				return true
			default:
				return false
			}
		}
		began := time.Now()
		c.wait(2 * time.Minute)
		if until, _ := c.pending(); !until.Equal(began.Add(2 * time.Minute)) {
			t.Errorf("until %s", until)
		}
		time.Sleep(2*time.Minute - time.Nanosecond)
		if over() {
			t.Error("over too early")
		}
		c.wait(time.Minute)
		time.Sleep(time.Minute - time.Nanosecond)
		if over() {
			t.Error("the second time is over too early")
		}
		time.Sleep(time.Nanosecond)
		if !over() {
			t.Error("the second time is not over")
		}
		c.wait(time.Second)
		c.stop()
		time.Sleep(time.Hour)
		if over() {
			t.Error("over after a stop")
		}
	})
}

func TestCheckConfirm(t *testing.T) {
	for within, ok := range map[time.Duration]bool{0: false, time.Second - 1: false, time.Second: true, 24 * time.Hour: true, 24*time.Hour + 1: false, -time.Second: false} {
		if err := CheckConfirm(within); (err == nil) != ok {
			t.Errorf("%s: %v", within, err)
		}
	}
}

// TestStateFile holds that a process that ends after any step of writing leaves the old file or the new
// one, and that the next process can write again.
func TestStateFile(t *testing.T) {
	first, second := unconfirmed{Files: configOf(t, firstText).Files}, unconfirmed{Files: configOf(t, secondText).Files}
	for _, before := range []string{"none", "first"} {
		steps := len(stateFile{"x"}.writing(second))
		for n := range steps + 1 {
			f := stateFile{filepath.Join(t.TempDir(), "state", "u.json")}
			if before == "first" {
				nettest.Must(t, f.write(first))
			}
			for _, step := range f.writing(second)[:n] {
				nettest.Must(t, step())
			}
			want := before
			if n >= steps-1 { // renamed
				want = "second"
			}
			if got := texts(t, f); got != want {
				t.Errorf("after %d of %d steps the file is %s, want %s", n, steps, got, want)
			}
			nettest.Must(t, f.write(first))
			if got := texts(t, f); got != "first" {
				t.Errorf("the next process writes %s", got)
			}
			info, err := os.Stat(f.path)
			nettest.Must(t, err)
			if info.Mode() != 0o600 {
				t.Errorf("mode %s", info.Mode())
			}
			nettest.Must(t, errors.Join(f.remove(), f.remove()))
			if got := texts(t, f); got != "none" {
				t.Errorf("after remove: %s", got)
			}
		}
	}
	// What does not fit into the file's bound, or is no JSON, is an error; what is another user's is not.
	f := stateFile{filepath.Join(t.TempDir(), "u.json")}
	for _, text := range []string{"", "{", strings.Repeat(" ", maxStateBytes+1)} {
		nettest.Must(t, os.WriteFile(f.path, []byte(text), 0o600))
		if u, err := f.read(); err == nil {
			t.Errorf("%d bytes are read as %+v", len(text), u)
		}
	}
	if err := (stateFile{}).write(first); !errors.Is(err, errNoStateDirectory) {
		t.Errorf("without a directory: %v", err)
	}
}

// TestConfirmHasNoPlace holds that a reload which cannot write down the configuration before says what to do.
func TestConfirmHasNoPlace(t *testing.T) {
	for path, want := range map[string]string{
		"":            "give the relay a directory",
		"/sys/u.json": "let the relay write in /sys",
	} {
		c := confirmation{file: stateFile{path}}
		if err := c.begin(&config.Config{}, nil); !strings.HasPrefix(remedy.Of(err), want) {
			t.Errorf("%q: %v, remedy %q, want %q", path, err, remedy.Of(err), want)
		}
	}
}

// TestStateFileHoldsTheLargestConfiguration holds that the bounds of both fit.
func TestStateFileHoldsTheLargestConfiguration(t *testing.T) {
	f := stateFile{filepath.Join(t.TempDir(), "u.json")}
	files := config.Files{{Path: "/etc/longhaul/longhaul.yaml", Text: make([]byte, 4<<20)}}
	for i := range 1000 {
		files = append(files, config.File{Path: fmt.Sprintf("/etc/longhaul/conf.d/%0200d.yaml", i)})
	}
	nettest.Must(t, f.write(unconfirmed{Files: files}))
	u, err := f.read()
	nettest.Must(t, err)
	if !u.Files.Equal(files) {
		t.Error("other files are read")
	}
}

func TestStateFileOf(t *testing.T) {
	at := func(file, dir string) string {
		return stateFileOf(file, nil, func(name string) string { return map[string]string{"STATE_DIRECTORY": dir}[name] }).path
	}
	a, b := at("/etc/longhaul/a.yaml", "/s"), at("/etc/longhaul/b.yaml", "/s")
	if a == b || filepath.Dir(a) != "/s" || a != at("/etc/longhaul/../longhaul/a.yaml", "/s") || at("", "/s") != "" {
		t.Errorf("the files are %s and %s", a, b)
	}
}

// TestDryRunChangesNothing holds that a dry run of everything leaves all as it was, and makes neither a
// key nor a file. Nor does it take the links from a paired tunnel that has them.
func TestDryRunChangesNothing(t *testing.T) {
	t.Run("plain before", func(t *testing.T) { dryRunChangesNothing(t, false) })
	t.Run("paired before", func(t *testing.T) { dryRunChangesNothing(t, true) })
}

func dryRunChangesNothing(t *testing.T, paired bool) {
	dir := nettest.OpenTempDir(t)
	address := func() string { return nettest.FreeAddress(t, "127.0.0.1") }
	path := filepath.Join(dir, "longhaul.yaml")
	usual := "control_socket: " + filepath.Join(dir, "control.sock") + "\npair_keys: " + dir + "/keys\n"
	plain := usual + "tunnels:\n  - {name: a, listen: " + address() + ", forward: 127.0.0.1:9, wan_side: forward}\n"
	if paired {
		plain += "  - {name: stood, listen: " + address() + ", forward: [127.0.0.1:9, 127.0.0.1:10], wan_side: forward, pair: site-b}\n"
	}
	nettest.Must(t, os.WriteFile(path, []byte(plain), 0o600))
	c, err := config.Loader{}.Load(t.Context(), path)
	nettest.Must(t, err)
	d := assembled(t, path, c)
	nettest.Must(t, change(t.Context(), d.parts, d.plan(c)))
	var links []*pair.Link
	if paired {
		nettest.Eventually(t, time.Minute, func() bool { // the peer is unknown, and its hops are down after a moment
			return !slices.ContainsFunc(d.relay.Overview().Tunnels[1].Hops, func(h flow.Hop) bool { return h.State != flow.HopDown })
		}, func() string { return inForce(d) })
		for _, h := range d.pairs.current.near["stood"].hops {
			links = append(links, h.link)
		}
	}
	was := inForce(d)
	fresh := address()
	text := plain + "  - {name: near, listen: " + fresh + ", forward: 127.0.0.1:9, wan_side: forward, pair: site-c}\n" +
		"  - {name: far, listen: " + address() + ", forward: 127.0.0.1:9, pair_from: site-d}\n" +
		"http_listen: " + address() + "\ndashboard: {listen: " + address() + "}\nhistory: {file: " + dir + "/history.db}\nmemory_limit: 1GiB\nlog: {level: debug}\n"
	nettest.Must(t, os.WriteFile(path, []byte(text), 0o600))
	for range 2 {
		r := d.tryReload(context.Background())
		if !r.OK || !r.DryRun || strings.Join(r.Added, " ") != "near far" || len(r.Differences) == 0 || r.Err() != nil {
			t.Fatalf("the outcome is %+v", r)
		}
	}
	if is := inForce(d); is != was {
		t.Errorf("in force is\n%s\nand not, as before,\n%s", is, was)
	}
	if d.life.lastReload() != nil {
		t.Errorf("the last reload is %+v", d.life.lastReload())
	}
	made := []string{"keys", "history.db"}
	if paired {
		made = made[1:]
		for i, h := range d.pairs.current.near["stood"].hops {
			if h.link != links[i] {
				t.Errorf("hop %s has another link", h.name)
			}
		}
	}
	for _, name := range made {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			t.Errorf("the dry run has made %s", name)
		}
	}
}
