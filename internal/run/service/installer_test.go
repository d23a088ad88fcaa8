package service

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"longhaul/internal/run/config"
	"longhaul/internal/words/remedy"
)

const site = `
tunnels:
  - { name: dns, listen: "relay.example.net:53", forward: "10.0.0.1:53", wan: { congestion_control: haul } }
`

// newInstaller installs into an image, as cmd has it do.
func newInstaller(t *testing.T) Installer {
	t.Helper()
	host, err := OpenHost(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return Installer{
		Host: host, Version: "longhaul test", OwnCC: []string{"haul", "hybla"},
		Share: func() (map[string][]byte, error) {
			return map[string][]byte{"man/man1/longhaul.1": []byte("page"), "doc/longhaul/a": []byte("a")}, nil
		},
	}
}

func TestInstallOnAnImage(t *testing.T) {
	i := newInstaller(t)
	i.Config, i.ConfigName = []byte(site), "site.yaml"
	i.DryRun = true
	planned, err := i.Install(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(i.Host.Root); err != nil || len(left) > 0 {
		t.Errorf("a dry run makes %v, %v", left, err)
	}
	i.DryRun = false
	made, err := i.Install(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(planned.Steps, made.Steps); diff != "" {
		t.Errorf("planned and made (-want +got):\n%s", diff)
	}
	var b bytes.Buffer
	if err := made.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	want := `wrote /usr/local/bin/longhaul
wrote /etc/systemd/system/longhaul.service
wrote /etc/longhaul/longhaul.yaml
wrote /etc/systemd/system/longhaul.service.d/low-ports.conf: tunnel dns listens on port 53
wrote /etc/systemd/system/longhaul.service.d/load-congestion-control.conf: tunnel dns uses haul
linked /etc/systemd/system/multi-user.target.wants/longhaul.service
wrote 2 files below /usr/local/share: manual pages, completion, examples
`
	if got, _, _ := strings.Cut(b.String(), "note: "); got != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}

	status, err := i.Host.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if status.Installed != "service install" || !status.Complete || status.Enabled == nil || !*status.Enabled ||
		status.Program != "/usr/local/bin/longhaul" || !slices.Equal(status.Capabilities, []string{"CAP_NET_BIND_SERVICE"}) ||
		len(status.DropIns) != 2 || len(status.Missing)+len(status.Changed) > 0 {
		t.Errorf("status %+v", status)
	}

	again := i
	again.Config, again.ConfigName = nil, ""
	made, err = again.Install(t.Context())
	if err != nil || changeFiles(made.Steps) {
		t.Errorf("again: %v, %v", made.Steps, err)
	}

	removed, err := Uninstaller{Host: i.Host}.Uninstall(t.Context())
	if err != nil || removed.Stopped {
		t.Fatalf("%v, %v", removed, err)
	}
	if left, err := os.ReadDir(i.Host.Root); err != nil || len(left) > 0 {
		t.Errorf("uninstall leaves %v, %v", left, err)
	}
}

// Choices are repeated until others are made.
func TestInstallRepeatsChoices(t *testing.T) {
	i := newInstaller(t)
	i.Prefix, i.DropIns = "/opt/longhaul", []string{NetAdmin}
	if _, err := i.Install(t.Context()); err != nil {
		t.Fatal(err)
	}
	i.Prefix, i.DropIns = "", nil
	made, err := i.Install(t.Context())
	if err != nil || changeFiles(made.Steps) {
		t.Errorf("%v, %v", made.Steps, err)
	}
	if made.Program != "/opt/longhaul/bin/longhaul" || made.Enabled {
		t.Errorf("%+v", made)
	}
	i.DropIns = []string{"none"}
	if made, err = i.Install(t.Context()); err != nil || len(made.DropIns) > 0 || i.Host.Exists(dropInPath(NetAdmin)) {
		t.Errorf("without drop-ins: %v, %v", made.DropIns, err)
	}
}

// A configuration that somebody has put there is not overwritten.
func TestInstallKeepsAConfiguration(t *testing.T) {
	i := newInstaller(t)
	write(t, i.Host, ConfigFile, site)
	i.Config, i.ConfigName = []byte(site+"#\n"), "other.yaml"
	var hinted *remedy.Error
	if _, err := i.Install(t.Context()); !errors.As(err, &hinted) || !strings.Contains(err.Error(), "differs from other.yaml") {
		t.Errorf("got %v", err)
	}
	i.Config = []byte("tunnels: []\nbad: 1\n")
	if err := os.Remove(filepath.Join(i.Host.Root, ConfigFile)); err != nil {
		t.Fatal(err)
	}
	var bad config.Errors
	if _, err := i.Install(t.Context()); !errors.As(err, &bad) {
		t.Errorf("a bad configuration gives %v", err)
	}
}

// A configuration is not installed without the files that it includes.
func TestInstallIncluded(t *testing.T) {
	const (
		main = "include: conf.d/*.yaml\n" + site
		more = "tunnels: [{name: more, listen: \":7001\", forward: \"10.0.0.1:80\"}]\n"
	)
	for name, c := range map[string]struct {
		onHost map[string]string
		ok     bool
	}{
		"not on the host": {map[string]string{".keep": ""}, false},
		"another content": {map[string]string{"a.yaml": more + "#\n"}, false},
		"another name":    {map[string]string{"b.yaml": more}, false},
		"the same":        {map[string]string{"a.yaml": more}, true},
		"and another":     {map[string]string{"a.yaml": more, "b.yaml": strings.NewReplacer("more", "other", "7001", "7002").Replace(more)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			from := filepath.Join(dir, "site.yaml")
			for path, text := range map[string]string{from: main, filepath.Join(dir, "conf.d", "a.yaml"): more} {
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
					t.Fatal(err)
				}
			}
			i := newInstaller(t)
			for name, text := range c.onHost {
				write(t, i.Host, filepath.Join(filepath.Dir(ConfigFile), "conf.d", name), text)
			}
			var err error
			if i.ConfigFiles, err = (config.Loader{}).Read(from); err != nil {
				t.Fatal(err)
			}
			i.Config, i.ConfigName = []byte(main), from
			_, err = i.Install(t.Context())
			var hinted *remedy.Error
			if c.ok != (err == nil) || err != nil && (!errors.As(err, &hinted) || !strings.Contains(err.Error(), "conf.d/a.yaml")) {
				t.Errorf("got %v", err)
			}
			if i.Host.Exists(ConfigFile) != c.ok {
				t.Errorf("a configuration is there: %v", !c.ok)
			}
		})
	}
}

func TestConflictsHaveARemedy(t *testing.T) {
	for path, fix := range map[string]string{
		"/usr/local/bin/longhaul": "move it away, or choose another place with --prefix DIR",
		UnitFile:                  "move it away",
	} {
		i := newInstaller(t)
		write(t, i.Host, path, "other")
		if _, err := i.Install(t.Context()); remedy.Of(err) != fix {
			t.Errorf("%s: %v, hint %q", path, err, remedy.Of(err))
		}
	}
}

// fakeKernel has changes of longhaul's, of which congestion controls can go.
type fakeKernel struct{ KernelChanges }

func (k *fakeKernel) Changes() KernelChanges { return k.KernelChanges }

func (k *fakeKernel) UnloadCC(_ context.Context, name string) (bool, error) {
	k.CongestionControls = slices.DeleteFunc(slices.Clone(k.CongestionControls), func(n string) bool { return n == name })
	return true, nil
}

// Uninstalling unloads what the service has loaded, and names the changes of
// other commands.
func TestUninstallRestoresTheKernel(t *testing.T) {
	kernel := &fakeKernel{KernelChanges{CongestionControls: []string{"haul", "hybla"}, Routes: []string{"10.0.0.0/8"}, MSSDevices: []string{"eth0"}}}
	notes, err := Uninstaller{Kernel: kernel}.restoreKernel(t.Context(), &Record{Loads: []string{"haul", "illinois"}})
	want := []string{
		"unloaded congestion control haul",
		"still loaded until the next boot, or longhaul cc unload hybla: a congestion control",
		"still changed until the next boot, or longhaul route undo --to 10.0.0.0/8: the route to it",
		"still there until the next boot, or longhaul mss undo --dev eth0: a rule for the MSS",
	}
	if err != nil || !slices.Equal(notes, want) {
		t.Errorf("%v: %s", err, strings.Join(notes, "\n"))
	}
}

// A purge removes what the service has stored as well.
func TestPurgeRemovesTheState(t *testing.T) {
	i := newInstaller(t)
	if _, err := i.Install(t.Context()); err != nil {
		t.Fatal(err)
	}
	write(t, i.Host, "/var/lib/private/longhaul/history.db", "records")
	removed, err := Uninstaller{Host: i.Host, Purge: true}.Uninstall(t.Context())
	if err != nil || !slices.ContainsFunc(removed.Steps, func(s Step) bool { return s.Path == "/var/lib/private/longhaul" }) {
		t.Errorf("%v, %v", removed.Steps, err)
	}
	if i.Host.Exists("/var/lib/private/longhaul") {
		t.Error("the history is still there")
	}
}

func TestSecretsOfTheDashboard(t *testing.T) {
	host := Host{Root: t.TempDir()}
	ask := host.checkDashboard(nil)
	c := config.Dashboard{TLSCert: "/etc/ssl/a.pem", TLSKey: credentialDir + "a.key", TokenFile: credentialDir + "token"}
	if problem, fix := ask(c); problem != "" || fix != "" {
		t.Errorf("%q, %q", problem, fix)
	}
	c.PasswordFile = "/etc/longhaul/reader"
	if problem, fix := ask(c); problem == "" || !strings.Contains(fix, credentialDir+"reader") {
		t.Errorf("%q, %q", problem, fix)
	}
	c.PasswordFile, c.TokenFile = credentialDir+"reader", "/etc/longhaul/token"
	if problem, fix := ask(c); problem == "" || !strings.Contains(fix, credentialDir+"token") {
		t.Errorf("%q, %q", problem, fix)
	}
}

func TestOpenHost(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, root := range []string{file, file + "/absent"} {
		if _, err := OpenHost(root); err == nil {
			t.Errorf("%s is taken for an image", root)
		}
	}
	if h, err := OpenHost(""); err != nil || h.Root != "" || h.Dir != RecordDir {
		t.Errorf("%+v, %v", h, err)
	}
}

// TestInstallLacks: what the host lacks is in the result. With a fatal lack nothing is
// installed.
func TestInstallLacks(t *testing.T) {
	i := newInstaller(t)
	i.Config, i.ConfigName = []byte(site), "site.yaml"
	lacks := []Lack{{What: "tunnel dns sets user_timeout: no TCP_RTO_MAX_MS", Remedy: "run Linux 6.15"}, {What: "tunnel dns uses haul: needs BTF", Remedy: "boot a kernel with BTF", Fatal: true}}
	i.Lacks = func(*config.Config) ([]Lack, error) { return lacks, nil }
	_, err := i.Install(t.Context())
	if err == nil || err.Error() != lacks[1].What || remedy.Of(err) != lacks[1].Remedy {
		t.Errorf("error %v, want %q with its remedy", err, lacks[1].What)
	}
	if left, err := os.ReadDir(i.Host.Root); err != nil || len(left) > 0 {
		t.Errorf("a refused installation makes %v, %v", left, err)
	}
	lacks = lacks[:1]
	made, err := i.Install(t.Context())
	if err != nil || cmp.Diff(lacks, made.Lacks) != "" || len(made.Steps) == 0 {
		t.Errorf("got %+v, %v, want an installation with %v", made, err, lacks)
	}
}
