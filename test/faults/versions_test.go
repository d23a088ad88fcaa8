package faults

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/preface"
	"longhaul/lab/sandbox"
	"longhaul/test/nettest"
)

// earlier is a commit whose relays must go on working with those of today, and the release that its
// program gets here.
const (
	earlier        = "071f4916"
	earlierRelease = "v0.9.0"
)

// earlierLonghaul is the program of that commit, which the first call builds from the history.
func earlierLonghaul(t *testing.T) string {
	t.Helper()
	nettest.RequireSandbox(t)
	if out, err := git("cat-file", "-e", earlier+"^{commit}").CombinedOutput(); err != nil {
		t.Skipf("needs the commit %s, which a shallow clone lacks: %v %s", earlier, err, out)
	}
	path, err := builtEarlier()
	nettest.Must(t, err)
	return path
}

func git(args ...string) *exec.Cmd {
	return exec.Command("git", append([]string{"-c", "safe.directory=*", "-C", "../.."}, args...)...)
}

var builtEarlier = sync.OnceValues(func() (string, error) {
	const path, source = "/run/longhaul-" + earlier, "/run/source-" + earlier
	if err := sandbox.PrivateRun(); err != nil {
		return "", err
	}
	if err := os.Mkdir(source, 0o700); err != nil {
		return "", err
	}
	defer os.RemoveAll(source)
	files := git("archive", "--format=tar", "-o", filepath.Join(source, "tar"), earlier)
	unpack := exec.Command("tar", "-xf", "tar")
	build := exec.Command("go", "build", "-buildvcs=false", "-ldflags", "-X main.release="+earlierRelease, "-o", path, "./cmd/longhaul")
	unpack.Dir, build.Dir = source, source
	for _, step := range []*exec.Cmd{files, unpack, build} {
		if out, err := step.CombinedOutput(); err != nil {
			return "", fmt.Errorf("build longhaul of %s: %w\n%s", earlier, err, out)
		}
	}
	return path, nil
})

// TestEarlierRelease holds that a relay of an earlier release and one of today carry flows both ways, in
// each mode that both know: through a lost path, an upgrade of the one of today, and at last of the other
// one. The one of today says that the other's release differs.
func TestEarlierRelease(t *testing.T) {
	t.Parallel()
	program := earlierLonghaul(t)
	for name, mode := range map[string]pairMode{
		"usual": {}, "lanes": {near: ", lanes: 4"}, "compress": {near: ", compress: auto"}, "clear": inClear,
		"no resume": withoutResume, "clear, no resume": inClearNoResume,
	} {
		for _, old := range []string{"near", "far"} {
			t.Run(old+" is old, "+name, func(t *testing.T) {
				t.Parallel()
				p, m := loopbackPair(t)
				p.in(mode)
				web := nettest.FreeAddress(t, "127.0.0.1")
				if old == "near" {
					p.nearProgram, p.moreFar = program, "http_listen: "+web+"\n"
				} else {
					p.farProgram, p.moreNear = program, "http_listen: "+web+"\n"
				}
				p.start()
				today, other := p.near, p.far
				if old == "near" {
					today, other = p.far, p.near
				}
				p.expectSkew(today, web)
				resumes := !strings.Contains(mode.near, "resume: off")
				p.run(bothDirections, map[string]func(){"fault": func() {
					if resumes {
						m.cut()()
					}
				}})
				for _, d := range []*daemon{p.near, p.far} {
					d.expectLog(`msg=flow .*\bend=end `)
				}
				for _, resets := range []string{"client", "target"} {
					p.run(strings.NewReplacer("RESETS", resets, "OTHER", map[string]string{"client": "target", "target": "client"}[resets]).Replace(`
						target listens
						client connects
						target accepts
						RESETS sends 3M
						OTHER expects 1M
						RESETS flushes
						RESETS resets
						OTHER expects 2M, reset
					`), nil)
					for _, d := range []*daemon{p.near, p.far} {
						d.expectLog(`msg=flow .*\bend=` + resets + `-reset `)
					}
				}
				p.run(`
					client connects
					client expects reset
				`, nil)
				p.expectNoFlows()

				p.target = echo(t, p.target)
				silent := hold(t, p.dial())
				for _, d := range []*daemon{today, other} {
					_, err := d.upgrade(nettest.Longhaul(t))
					nettest.Must(t, err)
					silent.alive(t, "after an upgrade")
					p.expectServed(p.dial())
					if resumes {
						m.reset(preface.Lane)
						m.reset(preface.Control)
						silent.alive(t, "after its connections broke")
					}
				}
				silent.release(t)
				today.expectExit(0)
				other.expectExit(0)
			})
		}
	}
}

// expectSkew expects that a relay shows the other one's release.
func (p *pairOf) expectSkew(today *daemon, web string) {
	p.t.Helper()
	s := today.session()
	if flow.ReleaseOf(s.Release) != earlierRelease || s.ReleaseHere == "" || flow.ReleaseOf(s.ReleaseHere) == earlierRelease {
		p.t.Errorf("status has the releases %q and %q", s.Release, s.ReleaseHere)
	}
	if output, status := command(p.t, "status", "--control-socket", today.socket()); status != 0 || !strings.Contains(output, "release "+earlierRelease+" there, ") {
		p.t.Errorf("status exits with %d: %s", status, output)
	}
	nettest.Eventually(p.t, patience, func() bool { // with the next sample
		resp, err := http.Get("http://" + web + "/metrics")
		nettest.Must(p.t, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		nettest.Must(p.t, err)
		return strings.Contains(string(text), `release="longhaul `+earlierRelease+` `)
	}, func() string { return "no metric has the other relay's release" })
}
