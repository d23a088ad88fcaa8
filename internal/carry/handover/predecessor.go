package handover

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Predecessor is the process that this one replaces.
type Predecessor struct {
	Offer
	Log *os.File // the future standard error

	channel channel
}

// Receive receives the offer of the process that started this one, and removes
// the variable from the environment. It returns nil if this process was not
// started as a successor.
func Receive(ctx context.Context) (*Predecessor, error) {
	value, found := os.LookupEnv(Variable)
	if !found {
		return nil, nil
	}
	if err := os.Unsetenv(Variable); err != nil {
		return nil, err
	}
	socket, log, err := descriptors(value)
	if err != nil {
		return nil, fmt.Errorf("%s=%s: %w; only longhaul upgrade sets it", Variable, value, err)
	}
	unix.CloseOnExec(socket)
	unix.CloseOnExec(log)
	p := &Predecessor{Log: os.NewFile(uintptr(log), "/dev/stderr")}
	if p.channel, err = openChannel(socket); err != nil {
		p.Log.Close()
		return nil, fmt.Errorf("%s=%s: %w; only longhaul upgrade sets it", Variable, value, err)
	}
	lift := p.channel.within(ctx)
	p.Offer, err = p.channel.receiveOffer()
	if cause := lift(); err != nil {
		p.Close()
		return nil, fmt.Errorf("take over the running relay's sockets: %w", errors.Join(cause, err))
	}
	return p, nil
}

func descriptors(value string) (socket, log int, err error) {
	first, second, found := strings.Cut(value, ",")
	if !found {
		return 0, 0, errors.New("want two numbers")
	}
	for _, d := range []struct {
		text string
		into *int
	}{{first, &socket}, {second, &log}} {
		n, err := strconv.ParseUint(d.text, 10, 16)
		if err != nil || n < 3 {
			return 0, 0, fmt.Errorf("%q is not the number of a descriptor", d.text)
		}
		if _, err := unix.FcntlInt(uintptr(n), unix.F_GETFD, 0); err != nil {
			return 0, 0, fmt.Errorf("descriptor %d is not open", n)
		}
		*d.into = int(n)
	}
	if socket == log {
		return 0, 0, errors.New("want two different numbers")
	}
	return socket, log, nil
}

// Ready reports that this process is ready to serve, with state as JSON, and
// waits for the order to begin.
func (p *Predecessor) Ready(ctx context.Context, state []byte) error {
	lift := p.channel.within(ctx)
	err := p.channel.send(message{Kind: kindReady, State: state})
	if err == nil {
		_, err = p.channel.expect(kindGo)
	}
	if cause := lift(); err != nil {
		if gone(err) {
			return errors.New("the relay to replace has ended, or has stopped waiting")
		}
		return errors.Join(cause, err)
	}
	return nil
}

// Serving reports that this process serves, and waits until the old one has
// stopped accepting or has ended. It makes the log standard error.
func (p *Predecessor) Serving(ctx context.Context) error {
	raw, err := p.Log.SyscallConn()
	if err != nil {
		return err
	}
	var dup error
	if err := raw.Control(func(fd uintptr) { dup = unix.Dup3(int(fd), unix.Stderr, 0) }); err != nil || dup != nil {
		return errors.Join(err, dup)
	}
	lift := p.channel.within(ctx)
	defer lift()
	if err := p.channel.send(message{Kind: kindServing}); err != nil {
		if gone(err) {
			return nil
		}
		return err
	}
	if _, err := p.channel.expect(kindYours); err != nil && !gone(err) {
		return errors.Join(context.Cause(ctx), err)
	}
	return nil
}

// Close closes the channel, which the old process waits for before it ends, and all
// offered descriptors. Log stays open: it may be in use.
func (p *Predecessor) Close() {
	if p == nil {
		return
	}
	CloseAll(p.Sockets)
	_ = p.channel.Close()
}
