package web_test

import (
	"fmt"
	"testing"

	"longhaul/test/nettest/browser"
)

// Below 1000 segments or 5 retransmissions there is no colour and no verdict, and what is
// retransmitted is not called lost.
func TestRetransmissionsWithoutVerdict(t *testing.T) {
	needsBrowser(t)
	t.Parallel()
	p := browser.Open(t, serve(t, 1, nil).base)
	p.Go("/")
	p.Becomes("document.querySelector('.tiles')")
	leg := func(level string, again int) string {
		return fmt.Sprintf("{leg: true, from: 'the client', to: 'this relay', resent: %d / 75000, level: %q}", again, level)
	}
	for _, c := range []struct{ of, want string }{
		{"chain.whereResent([" + leg("", 428) + "])", "Too little was sent to say where data is retransmitted."},
		{"chain.whereResent([" + leg("low", 30) + "])", "No leg retransmits as much as 0.1 % of its data."},
		{"chain.whereResent([" + leg("low", 30) + ", " + leg("raised", 428) + "])",
			"Data is retransmitted between the client and this relay: 0.57 %, which is raised."},
		{"JSON.stringify(format.resentCell(0.0371, ''))", `{"text":"3.71 %","title":"too little was sent to judge"}`},
		{"JSON.stringify(format.resentCell(0.0371, 'high'))", `{"text":"3.71 % high","level":"bad"}`},
		{"dom.stateMark('ok', 'listening').outerHTML", `<span>listening</span>`},
	} {
		got := browser.Eval[string](p, "Promise.all(['chain', 'format', 'dom'].map((m) => import(`/assets/${m}.js`))).then(([chain, format, dom]) => "+c.of+")")
		if got != c.want {
			t.Errorf("%s is %q, want %q", c.of, got, c.want)
		}
	}
}
