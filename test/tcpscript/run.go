package tcpscript

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// Env is the environment of a script.
type Env struct {
	// Dial connects to the address under test; DialTo makes one. The
	// connection must be TCP.
	Dial func(context.Context) (net.Conn, error)
	// Listen opens the target's socket behind the system under test; ListenOn
	// makes one.
	Listen func(context.Context) (net.Listener, error)
	// Do maps NAME to the function of "does NAME".
	Do map[string]func() error
	// Within bounds steps without their own bound; 0 means 5 s.
	Within time.Duration
}

// DialTo returns a function that connects to a TCP address.
func DialTo(address string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		d.SetMultipathTCP(false)
		return d.DialContext(ctx, "tcp", address)
	}
}

// ListenOn returns a function that listens on a TCP address.
func ListenOn(address string) func(context.Context) (net.Listener, error) {
	return func(ctx context.Context) (net.Listener, error) {
		var lc net.ListenConfig
		lc.SetMultipathTCP(false)
		return lc.Listen(ctx, "tcp", address)
	}
}

// Failure is a failed step.
type Failure struct {
	Line  int    // from 1
	Step  string // the line's text
	Actor string // empty for steps without one
	Got   string // the actual event: "got an end"
	Bytes int64  // read by the step before the event; -1 for steps that do not read
}

func (f *Failure) Error() string {
	if f.Bytes < 0 {
		return fmt.Sprintf("line %d, %q: %s", f.Line, f.Step, f.Got)
	}
	return fmt.Sprintf("line %d, %q: %s after %d bytes", f.Line, f.Step, f.Got, f.Bytes)
}

// Run runs the script and closes everything. The error is a *Failure if a step
// failed; later steps do not run.
func (s Script) Run(ctx context.Context, env Env) error {
	if env.Within == 0 {
		env.Within = 5 * time.Second
	}
	r := &run{env: env, ends: map[string]*end{}}
	defer r.close()
	for _, st := range s.steps {
		if err := r.step(ctx, st); err != nil {
			f := &Failure{Line: st.line, Step: st.text, Actor: st.actor, Got: err.Error(), Bytes: -1}
			var u *unexpected
			if errors.As(err, &u) {
				f.Bytes = u.bytes
			}
			return f
		}
	}
	return nil
}

// run is a running script.
type run struct {
	env      Env
	listener net.Listener
	ends     map[string]*end
}

func (r *run) close() {
	if r.listener != nil {
		r.listener.Close()
	}
	for _, e := range r.ends {
		e.abort()
	}
}

func (r *run) step(ctx context.Context, st step) error {
	within := st.within
	if within == 0 {
		within = r.env.Within
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()

	switch st.verb {
	case waits:
		<-ctx.Done()
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return nil
		}
		return ctx.Err()
	case does:
		f, ok := r.env.Do[st.name]
		if !ok {
			return fmt.Errorf("the test has no function %q", st.name)
		}
		return f()
	case listens:
		return r.listen(ctx)
	case connects:
		c, err := r.env.Dial(ctx)
		if errors.Is(err, unix.ECONNRESET) {
			return r.put(st.actor, newStillborn())
		}
		if err != nil {
			return err
		}
		return r.add(st.actor, c, fromDialer, fromAcceptor)
	case accepts:
		c, err := r.accept(ctx)
		if err != nil {
			return err
		}
		return r.add(st.actor, c, fromAcceptor, fromDialer)
	}

	e, ok := r.ends[st.actor]
	if !ok {
		return fmt.Errorf("%s has no connection", st.actor)
	}
	switch st.verb {
	case sends:
		e.send(st.size)
	case flushes:
		return e.flush(ctx)
	case ends:
		e.finish()
	case closes:
		e.close()
	case resets:
		e.abort()
	case expects:
		deadline, _ := ctx.Deadline()
		return e.expect(st.items, deadline)
	}
	return nil
}

func (r *run) listen(ctx context.Context) error {
	if r.listener != nil {
		return errors.New("a listener exists already")
	}
	l, err := r.env.Listen(ctx)
	r.listener = l
	return err
}

// accept takes the next connection. On timeout it closes the listener, the only
// way to stop Accept that every listener supports.
func (r *run) accept(ctx context.Context) (net.Conn, error) {
	if r.listener == nil {
		return nil, errors.New("no listener")
	}
	stop := context.AfterFunc(ctx, func() { r.listener.Close() })
	c, err := r.listener.Accept()
	if !stop() {
		if c != nil {
			c.Close()
		}
		return nil, errors.New("no connection arrived")
	}
	return c, err
}

// add gives a connection to an actor.
func (r *run) add(actor string, c net.Conn, out, in stream) error {
	e, err := newEnd(c, out, in)
	if err != nil {
		return err
	}
	return r.put(actor, e)
}

func (r *run) put(actor string, e *end) error {
	if _, ok := r.ends[actor]; ok {
		e.abort()
		return fmt.Errorf("%s has a connection already", actor)
	}
	r.ends[actor] = e
	return nil
}
