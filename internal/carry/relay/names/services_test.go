package names

import (
	"context"
	"errors"
	"net"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"longhaul/internal/carry/flow"
)

func TestCheckService(t *testing.T) {
	for _, name := range []string{"_longhaul._tcp.example.net", "_x._tcp.b.", "_a-b._tcp.site_b.example"} {
		if err := CheckService(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"", "example.net", "_x._udp.example.net", "_x._tcp.", "_x._tcp", "x._tcp.b", "_x._tcp..b", "_x._tcp.b:53", "_x._tcp.b\n"} {
		if CheckService(name) == nil {
			t.Errorf("%q passes", name)
		}
	}
}

// TestTargetsOf: the order is the same for the same records, and what leads nowhere is left out.
func TestTargetsOf(t *testing.T) {
	records := []*net.SRV{
		{Target: "C.Example.", Port: 1, Priority: 2, Weight: 9}, {Target: "b.example.", Port: 1, Priority: 1, Weight: 0},
		{Target: ".", Port: 1, Priority: 0}, {Target: "a.example.", Port: 0, Priority: 0}, {Target: "192.0.2.1.", Port: 1, Priority: 0},
		{Target: "a.example.", Port: 2, Priority: 1, Weight: 7}, {Target: "a.example.", Port: 1, Priority: 1, Weight: 7},
		{Target: "A.example.", Port: 1, Priority: 9}, // a target twice
		{Target: "-x.example.", Port: 1}, {Target: "x y.", Port: 1},
	}
	want := []Target{{"a.example", 1, 1, 7}, {"a.example", 2, 1, 7}, {"b.example", 1, 1, 0}, {"c.example", 1, 2, 9}}
	for range records {
		records = append(records[1:], records[0])
		if got := targetsOf(records); !slices.Equal(got, want) {
			t.Fatalf("the targets are %v, want %v", got, want)
		}
	}
}

// serviceServer answers queries about services as the test says.
type serviceServer struct {
	mu    sync.Mutex
	asked int
	found Answer
	err   error
}

func (s *serviceServer) resolve(context.Context, string) (Answer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	return s.found, s.err
}

func (s *serviceServer) set(found Answer, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.found, s.err = found, err
}

func (s *serviceServer) questions() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

// follow follows a service on the clock of synctest, and counts its changes.
func follow(t *testing.T, s *serviceServer) (n *Cache, changes func() int) {
	n = New(nil)
	n.resolveService = s.resolve
	var mu sync.Mutex
	count := 0
	first, stop := n.Follow("x", func() { mu.Lock(); defer mu.Unlock(); count++ })
	t.Cleanup(func() { stop(); n.Close() })
	<-first
	synctest.Wait()
	return n, func() int { mu.Lock(); defer mu.Unlock(); return count }
}

// TestServicesLiveByTheirTTL covers a service's life: another answer is seen when the last one expires, and
// what is no answer leaves the last one in force for a day.
func TestServicesLiveByTheirTTL(t *testing.T) {
	one, two := []Target{{"a", 1, 0, 0}}, []Target{{"a", 1, 0, 0}, {"b", 1, 0, 0}}
	synctest.Test(t, func(t *testing.T) {
		s := &serviceServer{found: Answer{Targets: one, TTL: 100 * time.Second}}
		n, changes := follow(t, s)
		expect := func(targets []Target, state flow.ServiceState, changed int) {
			t.Helper()
			synctest.Wait()
			if got := n.Service("x"); !slices.Equal(got.Targets, targets) || got.State != state || changes() != changed {
				t.Fatalf("%v, %s, %d changes; want %v, %s, %d", got.Targets, got.State, changes(), targets, state, changed)
			}
		}
		expect(one, flow.ServiceAnswered, 1)
		s.set(Answer{Targets: two, TTL: time.Minute}, nil)
		time.Sleep(99 * time.Second)
		expect(one, flow.ServiceAnswered, 1)
		time.Sleep(2 * time.Second)
		expect(two, flow.ServiceAnswered, 2)
		for i, err := range []error{&noTargets{flow.ServiceNoName, "gone"}, &noTargets{flow.ServiceNoRecords, "empty"}, errors.New("no server")} {
			s.set(Answer{}, err)
			time.Sleep(time.Minute + time.Second)
			expect(two, []flow.ServiceState{flow.ServiceNoName, flow.ServiceNoRecords, flow.ServiceNoAnswer}[i], 3+i)
		}
		// Without an answer it is asked for at the time of an answer without a TTL.
		before := s.questions()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if asked := s.questions() - before; asked != 2 {
			t.Errorf("%d queries in 10 s", asked)
		}
		s.set(Answer{Targets: one, TTL: time.Millisecond}, nil)
		time.Sleep(defaultTTL)
		expect(one, flow.ServiceAnswered, 6)
		// A TTL of 0 is one of a second.
		before = s.questions()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if asked := s.questions() - before; asked != 10 {
			t.Errorf("%d queries in 10 s", asked)
		}
		s.set(Answer{}, errors.New("no server"))
		time.Sleep(maxStale - 10*time.Second)
		expect(one, flow.ServiceNoAnswer, 7)
		time.Sleep(20 * time.Second)
		expect(nil, flow.ServiceNoAnswer, 8)
	})
}

// TestServiceOfAnotherProcess: the targets go on to the next process, with their age.
func TestServiceOfAnotherProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &serviceServer{found: Answer{Targets: []Target{{"a", 1, 2, 3}}, TTL: time.Minute}}
		n, _ := follow(t, s)
		s.set(Answer{}, errors.New("no server"))
		time.Sleep(time.Hour)
		next := New(nil)
		next.resolveService = s.resolve
		next.Remember(n.Memory())
		was, is := n.Service("x"), next.Service("x")
		if !slices.Equal(is.Targets, was.Targets) || is.TTL != was.TTL || !is.Answered.Equal(was.Answered) || is.Found != 1 {
			t.Errorf("%+v became %+v", was, is)
		}
		first, stop := next.Follow("x", func() {})
		<-first
		time.Sleep(maxStale - 30*time.Minute)
		if got := next.Service("x").Targets; got != nil {
			t.Errorf("a day after its answer a service has %v", got)
		}
		stop()
		next.Close()
	})
}

// TestManyTargets: what is kept of an answer has a bound, and the number is known.
func TestManyTargets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := make([]Target, 3000)
		for i := range all {
			all[i] = Target{Host: "a", Port: uint16(i + 1)}
		}
		n, _ := follow(t, &serviceServer{found: Answer{Targets: all}})
		if got := n.Service("x"); len(got.Targets) != maxTargets || got.Found != len(all) {
			t.Errorf("%d targets of %d", len(got.Targets), got.Found)
		}
	})
}

// TestKnownNamesHaveABound: a service may lead to other names all the time.
func TestKnownNamesHaveABound(t *testing.T) {
	n := New(nil)
	defer n.Close()
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range maxKnown + 10 {
		n.keep(string(rune(i))+".example", answer{until: time.Duration(i)})
	}
	_, newest := n.known[string(rune(maxKnown+9))+".example"]
	if _, oldest := n.known[string(rune(0))+".example"]; len(n.known) != maxKnown || oldest || !newest {
		t.Errorf("%d names, the oldest among them: %t, the newest: %t", len(n.known), oldest, newest)
	}
}

// srvAnswer fills in the answer to a query about a service of TestSystemServices. It reports whether
// there is one.
func srvAnswer(m *dnsmessage.Message, q dnsmessage.Question, stream bool) bool {
	srv := func(ttl uint32, port, priority, weight uint16, target string) {
		m.Answers = append(m.Answers, dnsmessage.Resource{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: ttl},
			Body:   &dnsmessage.SRVResource{Priority: priority, Weight: weight, Port: port, Target: dnsmessage.MustNewName(target)},
		})
	}
	switch q.Name.String() {
	case "_two._tcp.test.":
		srv(9, 6001, 1, 5, "b.test.")
		srv(9, 6000, 1, 5, "A.test.")
	case "_large._tcp.test.":
		if m.Truncated = !stream; stream {
			srv(60, 6000, 1, 1, "a.test.")
		}
	case "_root._tcp.test.":
		srv(60, 0, 0, 0, ".")
	case "_empty._tcp.test.":
	case "_fails._tcp.test.":
		m.RCode = dnsmessage.RCodeServerFailure
	case "_garbage._tcp.test.": // data that does not end where it should
		m.Answers = append(m.Answers, dnsmessage.Resource{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: 1, Type: dnsmessage.TypeSRV},
			Body:   &dnsmessage.UnknownResource{Type: dnsmessage.TypeSRV, Data: []byte{0, 1, 0}},
		})
	default:
		return false
	}
	return true
}

// testSystemServices is a part of TestSystemResolver, whose name server answers.
func testSystemServices(t *testing.T) {
	for name, want := range map[string]Answer{
		"_two._tcp.test":   {TTL: 9 * time.Second, Targets: []Target{{"a.test", 6000, 1, 5}, {"b.test", 6001, 1, 5}}},
		"_large._tcp.test": {TTL: time.Minute, Targets: []Target{{"a.test", 6000, 1, 1}}}, // over TCP
	} {
		if got, err := systemServices(t.Context(), name); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, want)
		}
	}
	for name, want := range map[string]flow.ServiceState{
		"_root._tcp.test": flow.ServiceNoTarget, "_empty._tcp.test": flow.ServiceNoRecords, "_missing._tcp.test": flow.ServiceNoName,
		"_fails._tcp.test": flow.ServiceNoAnswer, "_garbage._tcp.test": flow.ServiceNoAnswer,
	} {
		found, err := systemServices(t.Context(), name)
		if why := (*noTargets)(nil); !errors.As(err, &why) || why.state != want || why.text == "" {
			t.Errorf("%s: %+v, %v; want %s", name, found, err, want)
		}
	}
}

// FuzzTargets orders arbitrary records: whatever they are, the targets are names with ports, each once.
func FuzzTargets(f *testing.F) {
	f.Add("a.example.", uint16(1), uint16(2), uint16(3), "A.example.", uint16(1), uint16(0), uint16(0))
	f.Add(".", uint16(0), uint16(0), uint16(0), "1.2.3.4.", uint16(1), uint16(0), uint16(65535))
	f.Fuzz(func(t *testing.T, a string, ap, aq, aw uint16, b string, bp, bq, bw uint16) {
		records := []*net.SRV{{Target: a, Port: ap, Priority: aq, Weight: aw}, {Target: b, Port: bp, Priority: bq, Weight: bw}}
		got := targetsOf(records)
		slices.Reverse(records)
		if again := targetsOf(records); !slices.Equal(got, again) {
			t.Fatalf("%v and, in another order, %v", got, again)
		}
		for i, x := range got {
			if !isHostName(x.Host) || x.Port == 0 || i > 0 && x.Host == got[0].Host && x.Port == got[0].Port {
				t.Fatalf("%+v", got)
			}
		}
	})
}

// TestStopBesideASilentServer: to stop does not wait for a query, whose answer then changes nothing.
func TestStopBesideASilentServer(t *testing.T) {
	old, fresh := Answer{Targets: []Target{{"old.example", 1, 1, 1}}}, Answer{Targets: []Target{{"new.example", 1, 1, 1}}}
	asked, silent := make(chan bool, 2), make(chan bool)
	n := New(nil)
	defer n.Close()
	n.resolveService = func(context.Context, string) (Answer, error) { // the first query has no end of its own
		select {
		case asked <- true:
			<-silent
			return old, nil
		default:
			return fresh, nil
		}
	}
	asked <- true
	_, stop := n.Follow("_x._tcp.b", func() {})
	for len(asked) < 2 { // the query has begun
		runtime.Gosched()
	}
	stop()
	first, stop := n.Follow("_x._tcp.b", func() {})
	<-first
	close(silent)
	stop()
	n.Close()
	if got := n.Service("_x._tcp.b").Targets; !slices.Equal(got, fresh.Targets) {
		t.Errorf("the targets are %v, want %v", got, fresh.Targets)
	}
}
