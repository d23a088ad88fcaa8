package pair

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// poller watches the flows' own sockets, edge-triggered, with one goroutine. A parked
// flow costs no more than its entry here. Its epoll descriptor is itself in the Go
// runtime's, so that waiting holds no thread.
type poller struct {
	file *os.File
	fd   int
	done chan struct{}

	mu    sync.Mutex
	flows []watcher // by descriptor; nil: none
}

// watcher is the flow that has a socket.
type watcher interface{ event(fd int, events uint32) }

const pollEvents uint32 = unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET

func newPoller() (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	p := &poller{file: os.NewFile(uintptr(fd), "epoll"), fd: fd, done: make(chan struct{})}
	go p.run()
	return p, nil
}

func (p *poller) run() {
	defer close(p.done)
	raw, err := p.file.SyscallConn()
	if err != nil {
		return
	}
	events := make([]unix.EpollEvent, 256)
	_ = raw.Read(func(fd uintptr) bool {
		for {
			n, err := unix.EpollWait(int(fd), events, 0)
			if err != nil && err != unix.EINTR {
				return true
			}
			if n <= 0 {
				return false
			}
			p.dispatch(events[:n])
		}
	})
}

func (p *poller) dispatch(events []unix.EpollEvent) {
	for _, e := range events {
		p.mu.Lock()
		var f watcher
		if int(e.Fd) < len(p.flows) {
			f = p.flows[e.Fd]
		}
		p.mu.Unlock()
		if f != nil {
			f.event(int(e.Fd), e.Events)
		}
	}
}

// add watches a flow's socket; its present state is an event.
func (p *poller) add(fd int, f watcher) error {
	p.mu.Lock()
	for len(p.flows) <= fd {
		p.flows = append(p.flows, nil)
	}
	p.flows[fd] = f
	p.mu.Unlock()
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: pollEvents, Fd: int32(fd)}))
}

// change has arrivals of bytes reported or not. Bytes that are here already are an event.
func (p *poller) change(fd int, arrivals bool) {
	events := pollEvents
	if !arrivals {
		events &^= unix.EPOLLIN
	}
	_ = unix.EpollCtl(p.fd, unix.EPOLL_CTL_MOD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
}

// remove forgets a socket that is about to be closed.
func (p *poller) remove(fd int) {
	p.mu.Lock()
	if fd < len(p.flows) {
		p.flows[fd] = nil
	}
	p.mu.Unlock()
	_ = unix.EpollCtl(p.fd, unix.EPOLL_CTL_DEL, fd, nil)
}

func (p *poller) close() {
	p.file.Close()
	<-p.done
}
