package relay

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// order is a loop without sockets whose flows wait for visits.
type order struct {
	w     *worker
	flows map[string]*flow
}

func (o *order) begin(name string) {
	f := &flow{route: &route{state: &tunnelState{}}, timerIndex: -1}
	o.flows[name] = f
	o.w.place(f)
}

func (o *order) end(name string) {
	f := o.flows[name]
	delete(o.flows, name)
	o.w.unlist(f)
	f.phase = phaseGone
	o.w.slots[f.slot].flow = nil
	o.w.free = append(o.w.free, f.slot)
}

// visit makes as many visits as there are places, and returns who is visited, those without a query in brackets.
// Flows whose names begin with i are at rest then.
func (o *order) visit(left int) string {
	p := places{left: left}
	o.w.beginVisits(&p)
	var all []string
	for f, query := o.w.nextVisit(&p); f != nil; f, query = o.w.nextVisit(&p) {
		name := ""
		for n, other := range o.flows {
			if other == f {
				name = n
			}
		}
		f.visit = visit{}
		if name[0] == 'i' {
			f.rests = true
		} else {
			o.w.enlist(f, inTurn, o.w.visits.pass)
		}
		if !query {
			name = "(" + name + ")"
		}
		all = append(all, name)
	}
	return strings.Join(all, " ")
}

// TestOrderOfVisits: + begins a flow, - ends it, NAME=BYTES moves bytes of it, a number visits so many.
func TestOrderOfVisits(t *testing.T) {
	for name, tt := range map[string]struct{ steps, want string }{
		"nobody":                        {"3", ""},
		"all have room":                 {"+a +b +c 5 5", "a b c|a b c"},
		"new flows without a query":     {"+a +b +c +d 2 2 2", "a b (c) (d)|a b|c d"},
		"new flows behind others":       {"+a +b 9 +c +d 2 2 2", "a b|a b (c) (d)|a b|c d"},
		"in turn":                       {"+a +b +c +d +e 9 2 2 2", "a b c d e|a b|c d|e a"},
		"at rest":                       {"+a +ib +ic 9 9", "a ib ic|a"},
		"something happens":             {"+a +ib +ic 9 ic=1 9 9", "a ib ic|ic a|a"},
		"stays where it waits":          {"+a +b +c +d 9 1 a=1 b=1 c=1 d=1 3", "a b c d|a|b c d"},
		"ended":                         {"+a +b +c 9 -b 9", "a b c|a c"},
		"first and last ended":          {"+a +b +c +d 9 -a -d 9 -b -c 9", "a b c d|b c|"},
		"another in the place":          {"+a +b +c 9 -b +d 2 2", "a b c|a c (d)|a c"},
		"the busiest first":             {"+a +b +c +d +e 9 2 d=1000000 c=1 e=1 2", "a b c d e|a b|d c"},
		"the busiest have half":         {"+a +b +c +d +e +f 9 e=900 f=900 2 2 e=900 f=900 2", "a b c d e f|e a|f b|e c"},
		"the busiest have what is left": {"+a +b 9 a=50 b=60 4", "a b|a b"},
		"a part is not much":            {"+a +b +c +d +e +f 9 a=5 b=5 c=5 d=5 e=5 f=5 9 a=5 b=5 c=5 d=5 e=5 f=5 2", "a b c d e f|a b c d e f|a b"},
	} {
		t.Run(name, func(t *testing.T) {
			o := &order{w: &worker{}, flows: map[string]*flow{}}
			var got []string
			for _, step := range strings.Fields(tt.steps) {
				var bytes, left int
				who, moves, _ := strings.Cut(step, "=")
				switch {
				case step[0] == '+':
					o.begin(step[1:])
				case step[0] == '-':
					o.end(step[1:])
				case moves != "":
					fmt.Sscan(moves, &bytes)
					f := o.flows[who]
					o.w.count(f, up, f.dirs[up].bytes+int64(bytes))
				default:
					fmt.Sscan(step, &left)
					got = append(got, o.visit(left))
				}
			}
			if s := strings.Join(got, "|"); s != tt.want {
				t.Errorf("%s\nvisits %s\nwant   %s", tt.steps, s, tt.want)
			}
		})
	}
}

// TestVisitsAreFair holds, for loads of all kinds, that no flow waits for longer than the others in half of the
// places take, that the busiest ones are visited each time, and that the bound is kept.
func TestVisitsAreFair(t *testing.T) {
	const flows, left, heavy = 1000, 50, 20
	o := &order{w: &worker{}, flows: map[string]*flow{}}
	all := make([]string, flows)
	for i := range all {
		all[i] = fmt.Sprint("f", i)
		o.begin(all[i])
	}
	o.visit(left)
	waited := map[string]int{}
	for pass := range 3 * flows / left * 2 {
		for i, name := range all {
			f := o.flows[name]
			more := int64(100 + i)
			if i < heavy {
				more = 1 << 30
			}
			o.w.count(f, up, f.dirs[up].bytes+more)
		}
		got := strings.Fields(o.visit(left))
		if len(got) != left {
			t.Fatalf("%d visits, want %d", len(got), left)
		}
		for i, name := range all {
			if waited[name]++; slices.Contains(got, name) {
				waited[name] = 0
			}
			if most := 2 * flows / left; waited[name] > most || i < heavy && waited[name] > 1 && pass > 1 {
				t.Fatalf("sample %d: flow %s has waited for %d", pass, name, waited[name])
			}
		}
		if lag := o.w.lag(); lag > 2*flows/left {
			t.Fatalf("sample %d: a lag of %d", pass, lag)
		}
	}
}

// TestLagOfTheBusiest holds that a flow which waits behind one that came later counts.
func TestLagOfTheBusiest(t *testing.T) {
	o := &order{w: &worker{}, flows: map[string]*flow{}}
	for _, name := range strings.Fields("a b c d e f g h") {
		o.begin(name)
	}
	o.visit(8)
	o.visit(6) // a to f
	for _, name := range strings.Fields("a g h") {
		o.w.count(o.flows[name], up, 1000)
	}
	if lag := o.w.lag(); lag != 1 {
		t.Errorf("a lag of %d, want 1", lag)
	}
	if got := o.visit(0); got != "" || o.w.lag() != 2 || o.w.visits.waiting != 8 {
		t.Errorf("%q are visited without a place; a lag of %d, want 2; %d wait", got, o.w.lag(), o.w.visits.waiting)
	}
}

// TestShare: a loop with few of the flows has a place beside one with nearly all, in either order.
func TestShare(t *testing.T) {
	for _, c := range []struct {
		places, others int
		n, flows       int64
		want           int
	}{
		{250, 0, 0, 0, 250},
		{250, 0, 3, 0, 250}, // came to wait since they were counted
		{250, 1, 748, 750, 249},
		{250, 1, 2, 750, 1},
		{250, 1, 750, 750, 250},
		{250, 1, 0, 750, 0},
		{250, 3, 250, 1000, 63},
		{0, 3, 250, 1000, 0},
	} {
		if got := share(c.places, c.others, c.n, c.flows); got != c.want {
			t.Errorf("%d places, %d loops behind, %d of %d flows: %d, want %d", c.places, c.others, c.n, c.flows, got, c.want)
		}
	}
}
