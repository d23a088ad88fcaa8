// Package browser lets tests inspect pages with Chromium: their content,
// requests, errors and accessibility.
package browser

import (
	"context"
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/performance"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"longhaul/test/nettest"
)

// axe checks a page against WCAG.
//
//go:embed testdata/axe/axe.min.js
var axe string

// patience bounds the start of the browser, and every wait for a page.
const patience = time.Minute

// Page is a tab in its own browser. Its methods fail the test on an error.
type Page struct {
	t    testing.TB
	ctx  context.Context
	base string
	*seen
}

// seen records the page's actions.
type seen struct {
	mu       sync.Mutex
	problems []string
	requests []string
}

// Require skips the test without Chromium, and returns its path. Call it before
// the test starts any servers.
func Require(t testing.TB) string {
	t.Helper()
	return nettest.RequireProgram(t, "chromium", "chromium")
}

// Open starts a browser; paths of the page are relative to base.
func Open(t testing.TB, base string) *Page {
	t.Helper()
	program := Require(t)
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.IgnoreCertErrors, chromedp.WSURLReadTimeout(patience),
		chromedp.Flag("disable-component-update", true),
		// Chromium blocks these ports by default, and a test's server may get
		// one.
		chromedp.Flag("explicitly-allowed-ports", "1719,1720,1723,2049,3659,4045,4190,5060,5061,6000,6566,"+
			"6665,6666,6667,6668,6669,6679,6697,10080"))
	allocated, stop := chromedp.NewExecAllocator(t.Context(), options...)
	ctx, closeTab := chromedp.NewContext(allocated)
	t.Cleanup(func() {
		closeTab()
		stop()
	})
	p := &Page{t, ctx, base, &seen{}}
	p.check(chromedp.Listen(ctx, p.note))
	_, err := chromedp.Call(ctx, network.Enable, network.EnableParams{})
	p.check(err)
	_, err = chromedp.Call(ctx, performance.Enable, performance.EnableParams{TimeDomain: performance.EnableTimeDomainThreadTicks})
	p.check(err)
	return p
}

// For returns the same page for another test.
func (p *Page) For(t testing.TB) *Page { return &Page{t, p.ctx, p.base, p.seen} }

func (p *Page) check(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatalf("the browser: %v", err)
	}
}

// note records an event of the page.
func (p *seen) note(event any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		text := e.ExceptionDetails.Text
		if x := e.ExceptionDetails.Exception; x != nil {
			text += " " + x.Description
		}
		p.problems = append(p.problems, "exception: "+text)
	case *runtime.EventConsoleAPICalled:
		if slices.Contains([]string{"error", "warning", "assert"}, string(e.Type)) {
			p.problems = append(p.problems, fmt.Sprintf("console: %s %v", e.Type, e.Args))
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == "error" || e.Entry.Level == "warning" {
			p.problems = append(p.problems, fmt.Sprintf("%s: %s %s", e.Entry.Source, e.Entry.Text, e.Entry.URL))
		}
	case *network.EventRequestWillBeSent:
		p.requests = append(p.requests, e.Request.URL)
	}
}

// Problems returns and clears the exceptions, errors and warnings so far,
// including violations of the content security policy.
func (p *seen) Problems() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	found := p.problems
	p.problems = nil
	return found
}

// Elsewhere returns the requests so far to other origins. data: URLs, which the
// page or the browser's controls contain, do not count.
func (p *Page) Elsewhere() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(p.requests), func(url string) bool { return strings.HasPrefix(url, p.base) || strings.HasPrefix(url, "data:") })
}

// Go opens a path in a new document. Chromedp alone may return while the old one is still there: it takes
// the late event of a pushState for the end of the navigation.
func (p *Page) Go(path string) {
	p.t.Helper()
	Eval[any](p, "{ window.left = true }")
	p.check(chromedp.Do(p.ctx, chromedp.Navigate(p.base+path)))
	p.Becomes("!window.left && document.readyState === 'complete'")
}

// Size sets the size of the viewport.
func (p *Page) Size(width, height int64) {
	p.t.Helper()
	p.check(chromedp.Do(p.ctx, chromedp.EmulateViewport(width, height)))
}

// Theme sets the system's preferred color scheme, light or dark.
func (p *Page) Theme(name string) {
	p.t.Helper()
	_, err := chromedp.Call(p.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}},
	})
	p.check(err)
}

// Key presses keys.
func (p *Page) Key(keys string) {
	p.t.Helper()
	p.check(chromedp.Do(p.ctx, chromedp.KeyEvent(keys)))
}

// Screenshot returns the viewport as PNG.
func (p *Page) Screenshot() []byte {
	p.t.Helper()
	picture, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
	p.check(err)
	return picture
}

// Eval evaluates a JavaScript expression.
func Eval[T any](p *Page, expression string) T {
	p.t.Helper()
	v, err := chromedp.Run(p.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		p.t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// Becomes waits until a JavaScript expression is true. A failed evaluation, as
// during navigation, counts as false.
func (p *Page) Becomes(expression string) {
	p.t.Helper()
	nettest.Eventually(p.t, patience, func() bool {
		v, err := chromedp.Run(p.ctx, chromedp.Evaluate[bool]("Boolean("+expression+")"))
		return err == nil && v
	}, func() string {
		return expression + "; the page shows:\n" + Eval[string](p, "document.body.innerText")
	})
}

// Metrics returns the browser's metrics of the page, such as ScriptDuration and
// TaskDuration: CPU seconds of the page's thread.
func (p *Page) Metrics() map[string]float64 {
	p.t.Helper()
	answer, err := chromedp.Call(p.ctx, performance.GetMetrics, cdp.Empty{})
	p.check(err)
	found := map[string]float64{}
	for _, m := range answer.Metrics {
		found[m.Name] = m.Value
	}
	return found
}

// Audit returns the page's violations of WCAG 2.2 up to level AA and of axe's
// best practices.
func (p *Page) Audit() []string {
	p.t.Helper()
	if !Eval[bool](p, "typeof axe === 'object'") {
		_, err := chromedp.Run(p.ctx, chromedp.Evaluate[chromedp.Void](axe))
		p.check(err)
	}
	return Eval[[]string](p, `axe.run(document, {resultTypes: ['violations']}).then((r) => r.violations.flatMap((v) =>
		v.nodes.map((n) => v.id + ': ' + n.html.slice(0, 200) + ' — ' + n.failureSummary.replaceAll('\n', ' '))))`)
}
