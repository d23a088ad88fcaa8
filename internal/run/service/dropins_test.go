package service

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"longhaul/internal/run/config"
	"longhaul/internal/words/remedy"
	"longhaul/test/nettest"
)

// TestNeededDropIns holds what of a configuration asks for which drop-in.
func TestNeededDropIns(t *testing.T) {
	own := []string{"brutal", "haul", "hybla", "illinois", "lh_brutal", "lh_haul"}
	for name, test := range map[string]struct {
		yaml string
		want string // name: why, by lines
	}{
		"nothing":                      {`{listen: "127.0.0.1:6000", forward: "a:1"}`, ""},
		"the lowest port that is free": {`{listen: "127.0.0.1:1024", forward: "a:1"}`, ""},
		"a range that begins below it": {`{listen: "127.0.0.1:1023-1024", forward: "a:1-2"}`, "low-ports: tunnel t0 listens on port 1023"},
		"a restricted algorithm":       {`{listen: "127.0.0.1:6000", forward: "a:1", lan: {congestion_control: htcp}}`, "net-admin: tunnel t0 uses htcp, which the kernel restricts"},
		"a free one":                   {`{listen: "127.0.0.1:6000", forward: "a:1", wan: {congestion_control: bbr}}`, ""},
		"the kernel's own settings":    {`{listen: "127.0.0.1:6000", forward: "a:1", transport: kernel}`, ""},
		"large buffers":                {`{listen: "127.0.0.1:6000", forward: "a:1", wan: {receive_buffer: 16MiB}}`, "net-admin: tunnel t0 has buffers beyond net.core.wmem_max or rmem_max"},
		"ours, twice and once":         {`{listen: "127.0.0.1:6000", forward: "a:1", lan: {congestion_control: hybla}, wan: {congestion_control: haul}}` + "\n" + `{listen: "127.0.0.1:6001", forward: "a:1", wan: {congestion_control: haul}}`, "load-congestion-control: tunnel t0 uses hybla (hybla haul)"},
		"second name":                  {`{listen: "127.0.0.1:6000", forward: "a:1", wan: {congestion_control: lh_haul}}`, "load-congestion-control: tunnel t0 uses lh_haul (lh_haul)"},
		"brutal by its second name":    {`{listen: "127.0.0.1:6000", forward: "a:1", wan: {congestion_control: lh_brutal, rate: 1Gbit}}`, "congestion-control: tunnel t0 sets a rate for lh_brutal"},
		"brutal has all of it":         {`{listen: "127.0.0.1:6000", forward: "a:1", wan: {congestion_control: brutal, send_buffer: 16MiB, rate: 1Gbit}, lan: {congestion_control: haul}}`, "congestion-control: tunnel t0 sets a rate for brutal"},
		"interception":                 {`{intercept: {interface: lan0, to: 10.20.20.0/24}}`, "interception: tunnel t0 intercepts connections"},
		"clients' addresses":           {`{listen: "127.0.0.1:6000", pair_from: site-a, original: {from: 10.10.10.0/24, to: 10.20.20.0/24}}`, "interception: tunnel t0 dials from its clients' addresses"},
		"its own address":              {`{listen: "127.0.0.1:6000", pair_from: site-a, original: {to: 10.20.20.0/24}, source: relay}`, ""},
		"keys": {`{listen: "127.0.0.1:6000", forward: "a:1", check: {key_file: /run/credentials/longhaul.service/b}}` + "\n" + `{listen: "127.0.0.1:6001", forward: "a:1", check: {key_file: /run/credentials/longhaul.service/a}}`,
			"credentials: only root can read the key of checks (a b)"},
	} {
		text := "tunnels:\n"
		for i, line := range strings.Split(test.yaml, "\n") {
			text += "  - " + strings.Replace(line, "{", "{name: t"+string(rune('0'+i))+", ", 1) + "\n"
		}
		c, err := config.Loader{}.Parse(t.Context(), "test.yaml", []byte(text))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		dropIns, err := chooseDropIns(nil, neededDropIns(c, defaultLimits(), own))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, d := range dropIns {
			line := d.Name + ": " + d.Why
			if len(d.arguments) > 0 {
				line += " (" + strings.Join(d.arguments, " ") + ")"
			}
			got = append(got, line)
		}
		if strings.Join(got, "\n") != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

func TestCredentialsOfSinks(t *testing.T) {
	c, err := config.Loader{}.Parse(t.Context(), "test.yaml", []byte(`
dashboard: {listen: "127.0.0.1:9464", database: "postgres://r@db/x", password_file: /run/credentials/longhaul.service/db.password}
history:
  ship:
    - {to: "postgres://u@db/x", password_file: /run/credentials/longhaul.service/pg.password, ca: /etc/ssl/ca.pem}
    - {to: "https://ch/", cert: /run/credentials/longhaul.service/ch.pem, key: /run/credentials/longhaul.service/ch.key}
tunnels: [{name: a, listen: "127.0.0.1:6000", forward: "a:1"}]`))
	if err != nil {
		t.Fatal(err)
	}
	got := neededDropIns(c, defaultLimits(), nil)
	if len(got) != 1 || got[0].Name != Credentials || got[0].Why != "only root can read the keys" || strings.Join(got[0].arguments, " ") != "ch.key ch.pem db.password pg.password" {
		t.Errorf("got %v", got)
	}
}

// TestCredentialsOfWebConfigs: systemd passes the file, and what it names in its folder.
func TestCredentialsOfWebConfigs(t *testing.T) {
	host := Host{Root: t.TempDir()}
	etc := filepath.Join(host.Root, "etc/longhaul")
	nettest.Must(t, os.MkdirAll(etc, 0o755))
	nettest.NewIssuer(t, etc, "ca").Issue(t, etc, "relay", "localhost", time.Hour)
	web := func(key string) {
		nettest.Must(t, os.WriteFile(filepath.Join(etc, "web.yaml"), []byte("tls_server_config: {cert_file: relay.pem, key_file: "+key+"}\n"), 0o600))
	}
	parse := func(file string) (*config.Config, error) {
		return config.Loader{WebConfig: host.readWebConfig}.Parse(t.Context(), "test.yaml", []byte("http_listen: 127.0.0.1:9463\nhttp_web_config: "+file+"\n"+
			"tunnels: [{name: a, listen: \"127.0.0.1:6000\", forward: \"a:1\"}]"))
	}
	web("relay.key")
	c, err := parse(credentialDir + "web.yaml")
	if err != nil {
		t.Fatal(err)
	}
	got := neededDropIns(c, defaultLimits(), nil)
	if len(got) != 1 || got[0].Name != Credentials || strings.Join(got[0].arguments, " ") != "relay.key relay.pem web.yaml" {
		t.Errorf("got %v", got)
	}
	if _, err := parse("/etc/longhaul/web.yaml"); err == nil || !strings.Contains(err.Error(), credentialDir+"web.yaml") {
		t.Error(err)
	}
	web("/etc/longhaul/relay.key")
	if _, err := parse(credentialDir + "web.yaml"); err == nil || !strings.Contains(err.Error(), "cannot read the file /etc/longhaul/relay.key") {
		t.Error(err)
	}
}

func TestDropInForHealthChecks(t *testing.T) {
	c, err := config.Loader{}.Parse(t.Context(), "test.yaml", []byte("http_listen: 127.0.0.1:80\ntunnels: [{name: a, listen: \"127.0.0.1:6000\", forward: \"a:1\"}]"))
	if err != nil {
		t.Fatal(err)
	}
	if got := neededDropIns(c, defaultLimits(), nil); len(got) != 1 || got[0].Why != "http_listen has port 80" {
		t.Errorf("got %v", got)
	}
}

func TestChosenDropIns(t *testing.T) {
	needed := []DropIn{{Name: LowPorts}}
	for words, want := range map[string]string{
		"": "low-ports", "net-admin": "low-ports net-admin", "low-ports": "low-ports", "none": "", "auto": "low-ports",
		"congestion-control,net-admin": "low-ports congestion-control",
	} {
		var list []string
		if words != "" {
			list = strings.Split(words, ",")
		}
		got, err := chooseDropIns(list, needed)
		var names []string
		for _, d := range got {
			names = append(names, d.Name)
		}
		if err != nil || strings.Join(names, " ") != want {
			t.Errorf("--grant %s: %v, %v", words, names, err)
		}
	}
	for _, words := range [][]string{{"everything"}, {"none", "low-ports"}, {"auto", "none"}} {
		var hinted *remedy.Error
		if _, err := chooseDropIns(words, needed); !errors.As(err, &hinted) {
			t.Errorf("--grant %v gives %v", words, err)
		}
	}
}

func TestDropInsSayWhatTheyAreAbout(t *testing.T) {
	for _, test := range []struct {
		dropIn DropIn
		line   string
	}{
		{DropIn{Name: LoadCC, arguments: []string{"hybla", "haul"}}, "ExecStartPre=-+/opt/bin/longhaul cc load hybla haul"},
		{DropIn{Name: Credentials, arguments: []string{"a", "b.key"}}, "LoadCredential=a:/etc/longhaul/a\nLoadCredential=b.key:/etc/longhaul/b.key"},
		{DropIn{Name: Credentials}, "LoadCredential=check.key:/etc/longhaul/check.key"},
	} {
		text, err := test.dropIn.text("/opt/bin/longhaul")
		if err != nil || !strings.Contains(string(text), "\n"+test.line+"\n") {
			t.Errorf("%v: %v\n%s", test.dropIn, err, text)
		}
	}
}

func TestKeysOfTheService(t *testing.T) {
	for path, want := range map[string]string{
		"/run/credentials/longhaul.service/check.key": "/etc/longhaul/check.key",
		"/run/credentials/longhaul.service/":          "",
		"/run/credentials/longhaul.service/a/b":       "",
		"/run/credentials/longhaul.service/a:b":       "",
		"/run/credentials/other.service/check.key":    "",
		"/etc/longhaul/check.key":                     "",
	} {
		if got, ok := credentialSource(path); got != want || ok != (want != "") {
			t.Errorf("%s comes from %q, want %q", path, got, want)
		}
	}
	host := Host{Root: t.TempDir()}
	ask := host.checkKey(nil)
	if problem, fix := ask("/etc/longhaul/check.key"); problem == "" || !strings.Contains(fix, "/run/credentials/longhaul.service/check.key") {
		t.Errorf("%q, %q", problem, fix)
	}
	handed := credentialDir + "check.key"
	if problem, _ := ask(handed); problem != "there is no /etc/longhaul/check.key in the image" {
		t.Errorf("without the file: %q", problem)
	}
	if err := os.MkdirAll(filepath.Join(host.Root, "etc/longhaul"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(host.Root, "etc/longhaul/check.key"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if problem, _ := ask(handed); problem != "" {
		t.Errorf("with the file: %q", problem)
	}
}
