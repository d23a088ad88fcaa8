package resources

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"longhaul/test/nettest"
)

func figure(r Resource, used, capacity Amount) Figure {
	return Figure{Resource: r, Used: used, Capacity: capacity}
}

func TestLimitOf(t *testing.T) {
	for _, tt := range []struct {
		limit    Limit
		capacity Amount
		want     Amount
	}{
		{Limit{}, 100, Unknown},
		{Limit{Share: 0.9}, 1000, 900},
		{Limit{Share: 0.9}, Unknown, Unknown},
		{Limit{Amount: 50}, Unknown, 50},
		{Limit{Amount: 50}, 10, 50},
	} {
		if got := tt.limit.of(tt.capacity); got != tt.want {
			t.Errorf("%+v of %v: %v, want %v", tt.limit, tt.capacity, got, tt.want)
		}
	}
}

func TestJudge(t *testing.T) {
	limits := Limits{Descriptors: {Share: 0.8}, Memory: {Amount: 1000}}
	begin := time.Now()
	var g guard
	for i, step := range []struct {
		name                string
		descriptors, memory Amount
		shedding, tight     []Resource
		reached, left       []Resource
	}{
		{"at rest", 10, 100, nil, nil, nil, nil},
		{"near", 75, 949, nil, nil, nil, nil},
		{"nearer", 76, 949, nil, []Resource{Descriptors}, nil, nil},
		{"just below", 79.9, 999, nil, []Resource{Descriptors, Memory}, nil, nil},
		{"one reached", 80, 999, []Resource{Descriptors}, []Resource{Descriptors, Memory}, []Resource{Descriptors}, nil},
		{"a little less is not enough", 73, 999, []Resource{Descriptors}, []Resource{Descriptors, Memory}, nil, nil},
		{"both", 73, 1001, []Resource{Descriptors, Memory}, []Resource{Descriptors, Memory}, []Resource{Memory}, nil},
		{"one left", 71, 901, []Resource{Memory}, []Resource{Memory}, nil, []Resource{Descriptors}},
		{"what is not known is not short", 71, Unknown, nil, nil, nil, []Resource{Memory}},
		{"known again", 71, 940, nil, nil, nil, nil},
	} {
		s := State{At: begin.Add(time.Duration(i) * time.Second), Figures: []Figure{
			figure(Descriptors, step.descriptors, 100), figure(Memory, step.memory, Unknown), figure(CPU, 2, 2),
		}}
		changes := g.judge(&s, limits)
		var reached, left []Resource
		for _, c := range changes {
			if c.Reached {
				reached = append(reached, c.Figure.Resource)
			} else {
				left = append(left, c.Figure.Resource)
				if c.For <= 0 {
					t.Errorf("%s: reached for %v", step.name, c.For)
				}
			}
		}
		if !slices.Equal(s.Tight, step.tight) {
			t.Errorf("%s: tight %v", step.name, s.Tight)
		}
		if !slices.Equal(s.Shedding, step.shedding) || !slices.Equal(reached, step.reached) || !slices.Equal(left, step.left) {
			t.Errorf("%s: shedding %v, reached %v, left %v", step.name, s.Shedding, reached, left)
		}
		for _, f := range s.Figures {
			if (f.SheddingSince != nil) != slices.Contains(step.shedding, f.Resource) {
				t.Errorf("%s: %s since %v", step.name, f.Resource, f.SheddingSince)
			}
		}
	}
	// Since when does not move.
	s := State{At: begin, Figures: []Figure{figure(Descriptors, 90, 100)}}
	g.judge(&s, limits)
	s = State{At: begin.Add(time.Minute), Figures: []Figure{figure(Descriptors, 95, 100)}}
	g.judge(&s, limits)
	if since := s.Figures[0].SheddingSince; since == nil || !since.Equal(begin) {
		t.Errorf("shedding since %v", since)
	}
	// A limit that is lifted is not reached any more.
	s = State{At: begin.Add(2 * time.Minute), Figures: []Figure{figure(Descriptors, 95, 100)}}
	if changes := g.judge(&s, Limits{}); len(changes) != 1 || changes[0].Reached || changes[0].For != 2*time.Minute || len(s.Shedding) != 0 {
		t.Errorf("want shedding to end after 2 minutes, the changes are %+v", changes)
	}
}

// With no room for what comes next a limit counts as reached.
func TestJudgeByTheGrain(t *testing.T) {
	limits := Limits{Descriptors: {Amount: 100.5, Grain: 1}}
	for used, want := range map[Amount]bool{98: false, 99: false, 99.5: false, 99.6: true, 100: true} {
		s := State{At: time.Now(), Figures: []Figure{figure(Descriptors, used, Unknown)}}
		if new(guard).judge(&s, limits); (len(s.Shedding) > 0) != want {
			t.Errorf("%v: %v", used, s.Shedding)
		}
	}
}

// What stays below its limit, though not by much, is not short for ever.
func TestJudgeSettles(t *testing.T) {
	limits := Limits{Memory: {Amount: 1000}}
	begin := time.Now()
	var g guard
	for _, step := range []struct {
		after    time.Duration
		used     Amount
		shedding bool
	}{
		{0, 1000, true},
		{time.Second, 950, true},
		{8 * time.Second, 950, true},
		{9 * time.Second, 1001, true},
		{10 * time.Second, 950, true},
		{12 * time.Second, 950, true},
		{19 * time.Second, 950, true},
		{20 * time.Second, 950, false},
		{21 * time.Second, 999, false},
		{22 * time.Second, 1000, true},
	} {
		s := State{At: begin.Add(step.after), Figures: []Figure{figure(Memory, step.used, Unknown)}}
		if g.judge(&s, limits); (len(s.Shedding) > 0) != step.shedding {
			t.Errorf("after %v: %v", step.after, s.Shedding)
		}
	}
}

func TestDescriptorRoom(t *testing.T) {
	for _, tt := range []struct {
		used, limit Amount
		fresh       bool
		want        int64
		ok          bool
	}{
		{10, 100, true, 90, true},
		{10, 100.5, true, 90, true},
		{110, 100, true, 0, true},
		{10, 100, false, 0, false},
		{10, Unknown, true, 0, false},
		{Unknown, 100, true, 0, false},
	} {
		s := State{fresh: tt.fresh, Figures: []Figure{{Resource: Descriptors, Used: tt.used, Limit: tt.limit}}}
		if got, ok := s.DescriptorRoom(); ok != tt.ok || ok && got != tt.want {
			t.Errorf("%+v: %d, %v", tt, got, ok)
		}
	}
}

func TestMonitor(t *testing.T) {
	nettest.CheckLeaks(t)
	var used atomic.Int64
	states := make(chan State, 1000)
	m := Start(Options{
		Limits:    Limits{Memory: {Amount: 100}},
		LoopDelay: func() Amount { return 0.25 },
		OnState: func(s State, _ []Change) {
			select {
			case states <- s:
			default:
			}
		},
		sample: func(now time.Time) State {
			return State{At: now, Figures: []Figure{figure(Memory, Amount(used.Load()), Unknown)}}
		},
	})
	defer m.Close()
	if s := <-states; len(s.Shedding) != 0 || s.LoopDelay != 0.25 {
		t.Errorf("the first state is %+v", s)
	}
	used.Store(90)
	m.SetLimits(Limits{Memory: {Amount: 80}})
	nettest.Eventually(t, time.Minute, func() bool { return len(m.State().Shedding) == 1 }, func() string { return "a lower limit does nothing" })
	// Near a limit it looks more often.
	first := <-states
	for first.Figure(Memory).SheddingSince == nil {
		first = <-states
	}
	for range 3 {
		<-states
	}
	used.Store(10)
	nettest.Eventually(t, time.Minute, func() bool { return len(m.State().Shedding) == 0 }, func() string { return "it does not recover" })
}
