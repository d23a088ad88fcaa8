//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"longhaul/internal/run/config"
	"longhaul/internal/run/service"
	"longhaul/internal/words/manpage/commandpage"
	"longhaul/packaging"
	"longhaul/test/nettest"
)

// TestUnitStartsTheRelay runs the unit's command line as far as reading the
// configuration, whose path is one that does not exist.
func TestUnitStartsTheRelay(t *testing.T) {
	unit, err := os.ReadFile("../../packaging/longhaul.service")
	if err != nil {
		t.Fatal(err)
	}
	match := regexp.MustCompile(`(?m)^ExecStart=/usr/bin/longhaul (.*)$`).FindSubmatch(unit)
	if match == nil {
		t.Fatal("the unit does not start /usr/bin/longhaul")
	}
	absent := filepath.Join(t.TempDir(), "absent.yaml")
	args := strings.Fields(strings.Replace(string(match[1]), "/etc/longhaul/longhaul.yaml", absent, 1))
	var out bytes.Buffer
	code := run(&env{ctx: t.Context(), args: args, stdin: strings.NewReader(""), stdout: &out, stderr: &out, getenv: os.Getenv})
	if want := "longhaul: " + absent + ": cannot be read: no such file or directory\n"; code != exitUsage || !strings.HasPrefix(out.String(), want) {
		t.Errorf("exit code %d: %s", code, out.String())
	}
}

// TestExposureOfTheUnit holds what docs/install.md says of the unit and its
// drop-ins.
func TestExposureOfTheUnit(t *testing.T) {
	nettest.RequireProgram(t, "systemd-analyze", "systemd")
	t.Parallel()
	page, err := os.ReadFile("../../docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	const addresses = "ip-addresses" // an example, which no configuration needs
	for _, test := range []struct {
		dropIns []string
		most    float64
	}{
		{nil, 1.3},
		{[]string{service.LowPorts}, 1.5},
		{[]string{service.NetAdmin}, 1.5},
		{[]string{service.LoadCC}, 1.3},
		{[]string{service.UseCC}, 2.0},
		{[]string{service.Credentials}, 1.3},
		{[]string{service.LowPorts, service.NetAdmin, service.LoadCC}, 1.6},
		{[]string{service.LowPorts, service.UseCC}, 2.1},
		{[]string{addresses}, 1.2},
	} {
		h := service.Host{Root: t.TempDir(), Dir: service.RecordDir}
		files := []string{service.UnitName}
		for _, d := range test.dropIns {
			files = append(files, service.UnitName+".d/"+d+".conf")
		}
		for _, name := range files {
			source := name
			if strings.HasSuffix(name, "/"+addresses+".conf") {
				source = "examples/" + addresses + ".conf"
			}
			b, err := packaging.File(source, packaging.PackagedProgram)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(h.Root, "etc/systemd/system", name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, b, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := service.Exposure(t.Context(), h.Root, service.UnitName)
		if err != nil {
			t.Fatal(err)
		}
		if got > test.most {
			t.Errorf("with %v the exposure is %.1f, more than %.1f", test.dropIns, got, test.most)
		}
		if len(test.dropIns) == 1 {
			row := regexp.MustCompile(fmt.Sprintf("(?m)`%s` \\|.*\\| %.1f \\|$", test.dropIns[0], test.most))
			if !row.Match(page) {
				t.Errorf("docs/install.md does not say %.1f for %s", test.most, test.dropIns[0])
			}
		}
	}
}

// TestExamples holds that the two files of every example belong together:
// where one leads, the other listens and lets it in.
func TestExamples(t *testing.T) {
	nears, err := filepath.Glob("../../packaging/examples/*-near.yaml")
	if err != nil || len(nears) < 5 {
		t.Fatalf("%d examples, %v", len(nears), err)
	}
	page, err := os.ReadFile("../../docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range nears {
		name := filepath.Base(path)
		t.Run(strings.TrimSuffix(name, "-near.yaml"), func(t *testing.T) {
			near, far := loadExample(t, path), loadExample(t, strings.TrimSuffix(path, "-near.yaml")+"-far.yaml")
			if !bytes.Contains(page, []byte(name)) {
				t.Error("docs/install.md does not name it")
			}
			if len(near.Tunnels) != len(far.Tunnels) {
				t.Fatalf("%d and %d tunnels", len(near.Tunnels), len(far.Tunnels))
			}
			for i, n := range near.Tunnels {
				f := far.Tunnels[i]
				switch {
				case n.Name != f.Name:
					t.Errorf("tunnel %s is %s on the other side", n.Name, f.Name)
				case n.WANSide == config.WANForward && f.WANSide == config.WANListen:
					checkLeads(t, n, f)
				case n.WANSide == config.WANListen && f.WANSide == config.WANForward:
					checkLeads(t, f, n)
				default:
					t.Errorf("tunnel %s has the WAN on sides %s and %s", n.Name, n.WANSide, f.WANSide)
				}
			}
		})
	}
}

// TestExamplesOfFaultsLoad checks those that test/faults runs.
func TestExamplesOfFaultsLoad(t *testing.T) {
	for _, pattern := range []string{"ha/longhaul*.yaml", "routed/*.yaml"} {
		files, err := filepath.Glob("../../packaging/examples/" + pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("no examples %s: %v", pattern, err)
		}
		for _, file := range files {
			loadExample(t, file)
		}
	}
}

// TestKubernetesManifests checks what the manifests say to longhaul: the configuration
// is good, the pod gets time for the drain, and the probes ask where the relay answers.
// packaging/checks/manifests checks what they say to Kubernetes.
func TestKubernetesManifests(t *testing.T) {
	const dir = "../../packaging/kubernetes/"
	for manifest, file := range map[string]string{"relay/relay.yaml": "relay/longhaul.yaml", "paired/near.yaml": "paired/longhaul.yaml", "node.yaml": ""} {
		t.Run(manifest, func(t *testing.T) {
			var c *config.Config
			if file != "" {
				c = loadExample(t, dir+file)
			}
			var pods int
			for part := range strings.SplitSeq(readSource(t, dir+manifest), "\n---\n") {
				var object struct {
					Data map[string]string
					Spec struct {
						Template struct {
							Spec struct {
								TerminationGracePeriodSeconds int `yaml:"terminationGracePeriodSeconds"`
								Containers                    []struct{ Name string }
							}
						}
					}
				}
				if err := yaml.Unmarshal([]byte(part), &object); err != nil {
					t.Fatal(err)
				}
				if text := object.Data["longhaul.yaml"]; text != "" {
					file := filepath.Join(t.TempDir(), "longhaul.yaml")
					nettest.Must(t, os.WriteFile(file, []byte(text), 0o600))
					c = loadExample(t, file)
				}
				if pod := object.Spec.Template.Spec; len(pod.Containers) > 0 {
					pods++
					const sleep = 5 * time.Second
					if grace := time.Duration(pod.TerminationGracePeriodSeconds) * time.Second; grace < sleep+c.DrainTimeout+5*time.Second {
						t.Errorf("the pod is killed after %v, the drain takes up to %v", grace, c.DrainTimeout)
					}
				}
			}
			if c == nil || pods != 1 {
				t.Fatalf("%d kinds of pods", pods)
			}
			if len(c.HTTPListen) != 1 || c.HTTPListen[0].Port() != 9463 {
				t.Errorf("the relay answers at %v", c.HTTPListen)
			}
		})
	}
}

func loadExample(t *testing.T, path string) *config.Config {
	t.Helper()
	c, err := loader().Load(t.Context(), path)
	if err != nil {
		var out bytes.Buffer
		printError(&out, err)
		t.Fatal(out.String())
	}
	return c
}

// checkLeads holds that from leads to where to listens, and is let in.
func checkLeads(t *testing.T, from, to config.Tunnel) {
	t.Helper()
	hop, listen := from.Forward[0], to.Listen[0]
	if hop.Host != listen.Addr.String() || hop.Ports != listen.Ports {
		t.Errorf("tunnel %s leads to %v, and the other side listens on %v", from.Name, hop, listen)
	}
	if !slices.ContainsFunc(to.Allow, func(p netip.Prefix) bool { return p.Contains(from.Listen[0].Addr) }) {
		t.Errorf("tunnel %s does not let %s in", to.Name, from.Listen[0].Addr)
	}
}

func testRoot(t *testing.T) *cobra.Command {
	t.Helper()
	var out bytes.Buffer
	return newRoot(&env{ctx: context.Background(), stdin: strings.NewReader(""), stdout: &out, stderr: &out, getenv: os.Getenv})
}

// TestManPagesNameEveryFlag renders the pages as man does, and finds the
// words of every command's help on them.
func TestManPagesNameEveryFlag(t *testing.T) {
	nettest.RequireProgram(t, "groff", "groff-base")
	t.Parallel()
	root := testRoot(t)
	pages := manPages(root, "2026-11-21")
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Hidden || cmd.Name() == "help" {
			return
		}
		name := commandpage.Name(cmd) + ".1"
		text := render(t, name, pages[name])
		cmd.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden && !strings.Contains(text, "--"+f.Name) {
				t.Errorf("%s lacks --%s", name, f.Name)
			}
		})
		words := strings.Join(strings.Fields(text), " ")
		parts := append(strings.Split(strings.ReplaceAll(cmd.Long, "Exit codes: ", ""), "\n\n"), cmd.Short[1:], cmd.Example)
		for _, part := range parts {
			if part = strings.Join(strings.Fields(part), " "); !strings.Contains(words, part) {
				t.Errorf("%s lacks %q; it has\n%s", name, part, text)
			}
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(root)
}

// TestManPages holds what every page has: a date, the sections of exit statuses and of
// files, and references to pages and documents that are there.
func TestManPages(t *testing.T) {
	t.Parallel()
	root := testRoot(t)
	env := &env{stdin: strings.NewReader(""), getenv: func(name string) string {
		return map[string]string{"SOURCE_DATE_EPOCH": "1795694400"}[name]
	}}
	files, err := sharedFiles(env)
	if err != nil {
		t.Fatal(err)
	}
	reference := regexp.MustCompile(`(?m)^\.BR (\S+) \((\d)\)`)
	document := regexp.MustCompile(`/usr/share/(doc/longhaul/\S+\.md)`)
	pages := 0
	for path, page := range files {
		name, isCommand := strings.CutPrefix(path, "man/man1/")
		if !isCommand {
			continue
		}
		pages++
		text := strings.ReplaceAll(string(page), `\-`, "-")
		for _, part := range []string{`.TH `, ` 1 "2026-11-26" `, ".SH EXIT STATUS\n", ".SH SEE ALSO\n", ".SH EXAMPLES\n"} {
			if !strings.Contains(text, part) {
				t.Errorf("%s lacks %q", name, part)
			}
		}
		for _, m := range reference.FindAllStringSubmatch(text, -1) {
			if files["man/man"+m[2]+"/"+m[1]+"."+m[2]] == nil {
				t.Errorf("%s refers to %s(%s), which is not there", name, m[1], m[2])
			}
		}
		for _, m := range document.FindAllStringSubmatch(text, -1) {
			if files[m[1]] == nil {
				t.Errorf("%s refers to %s, which is not shipped", name, m[1])
			}
		}
	}
	if pages < 30 || files["doc/longhaul/history.md"] == nil || files["doc/longhaul/design/command-line.md"] == nil {
		t.Errorf("%d pages; not all documents are shipped", pages)
	}
	for path, related := range relatedVerbs {
		for _, other := range append(related, strings.TrimPrefix(path, "longhaul ")) {
			if subcommand(root, other) == nil && !slices.Contains(pending, strings.Fields(other)[0]) {
				t.Errorf("%s is related to %s, which is no command", path, other)
			}
		}
	}
	for verb := range documents {
		if subcommand(root, verb) == nil {
			t.Errorf("documents of %s, which is no command", verb)
		}
	}
}

// TestManPagesLint holds that mandoc finds no mistake in the pages.
func TestManPagesLint(t *testing.T) {
	mandoc := nettest.RequireProgram(t, "mandoc", "mandoc")
	t.Parallel()
	dir := t.TempDir()
	names := []string{}
	for name, page := range manPages(testRoot(t), "2026-11-21") {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, page, 0o600); err != nil {
			t.Fatal(err)
		}
		names = append(names, path)
	}
	out, err := exec.Command(mandoc, append([]string{"-Tlint", "-Wwarning"}, names...)...).CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("mandoc: %v\n%s", err, out)
	}
}

// render formats a page for a terminal, on which groff finds nothing wrong.
func render(t *testing.T, name string, page []byte) string {
	t.Helper()
	cmd := exec.Command("groff", "-t", "-man", "-Kutf8", "-Tutf8", "-ww", "-P-cbou", "-rLL=78n")
	cmd.Stdin = bytes.NewReader(page)
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := cmd.Run(); err != nil || complaints.Len() > 0 {
		t.Fatalf("groff on %s: %v %s", name, err, complaints.String())
	}
	return out.String()
}

// TestCompletionScriptsAreSound has each shell that is there read its script.
func TestCompletionScriptsAreSound(t *testing.T) {
	scripts, err := completionScripts(testRoot(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range shells {
		t.Run(s.name, func(t *testing.T) {
			nettest.RequireProgram(t, s.name, s.name)
			cmd := exec.Command(s.name, "-n")
			cmd.Stdin = bytes.NewReader(scripts[s.path])
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}

func TestCompletionOfValues(t *testing.T) {
	for _, test := range []struct{ line, want string }{
		{"status --sort ", "goodput bytes age"},
		{"relay --wan-side f", "forward"},
		{"cc load h", "haul hybla"},
		{"cc load haul h", "hybla"},
		{"service install --grant ", strings.Join(service.DropInNames(), " ") + " auto none"},
		{"relay --balance ", "ordered least-flows round-robin source"},
		{"completion ", "bash zsh fish"},
		{"config check ", "yaml yml"}, // the endings of files
	} {
		var out, errs bytes.Buffer
		words := strings.Split(test.line, " ")
		code := run(&env{ctx: t.Context(), args: append([]string{cobra.ShellCompNoDescRequestCmd}, words...), stdin: strings.NewReader(""), stdout: &out, stderr: &errs, getenv: os.Getenv})
		offered, _, _ := strings.Cut(out.String(), ":")
		var got []string
		last := words[len(words)-1]
		for _, word := range strings.Fields(offered) {
			if strings.HasPrefix(word, last) { // the shell sorts out the rest
				got = append(got, word)
			}
		}
		if code != exitOK || strings.Join(got, " ") != test.want {
			t.Errorf("longhaul %s: %q, want %q (exit code %d, %s)", test.line, got, test.want, code, errs.String())
		}
	}
}
