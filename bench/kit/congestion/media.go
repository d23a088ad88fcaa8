package congestion

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/lab/hosts"
)

// Media is a real-time flow beside the flows of a trial: UDP of a constant rate in
// frames, without congestion control, like a video call whose encoder does not adapt
// (compare RFC 8867).
type Media struct {
	RateBps int64         // of whole IP packets; 0 means none
	Frame   time.Duration // from one frame to the next
}

// MediaOutcome is what the receiver got of a Media flow.
type MediaOutcome struct {
	Packets    int   `json:"packets,omitempty"` // sent
	Lost       Value `json:"lost_share"`        // of the packets sent until shortly before the end
	DelayP50Ms Value `json:"delay_p50_ms"`      // one way, of the packets that arrived
	DelayP99Ms Value `json:"delay_p99_ms"`
}

// mediaPacketBytes is the size of an IP packet of a Media flow.
const mediaPacketBytes = 1250

// settle is the time that packets in flight get to arrive, or to be lost.
const settle = time.Second

// run sends until the context ends, and returns what arrived.
func (m Media) run(ctx context.Context, begin time.Time, from, to *hosts.Host, address netip.Addr) (MediaOutcome, error) {
	if m.RateBps == 0 {
		return MediaOutcome{Lost: None, DelayP50Ms: None, DelayP99Ms: None}, nil
	}
	sink, err := listenMedia(to, address)
	if err != nil {
		return MediaOutcome{}, fmt.Errorf("receive media: %w", err)
	}
	defer sink.Close()
	var source *net.UDPConn
	err = from.Do(func() (err error) {
		source, err = net.DialUDP("udp", nil, sink.LocalAddr().(*net.UDPAddr))
		return err
	})
	if err != nil {
		return MediaOutcome{}, fmt.Errorf("send media: %w", err)
	}
	defer source.Close()
	arrivals := make(chan map[uint32]time.Duration, 1)
	go func() { arrivals <- receiveMedia(sink) }()
	sentAt, err := m.send(ctx, begin, source)
	sink.Close() // ends receiveMedia
	delays := <-arrivals
	if err != nil {
		return MediaOutcome{}, fmt.Errorf("send media: %w", err)
	}
	return mediaOutcome(sentAt, delays), nil
}

// listenMedia opens a socket that gets the kernel's time of each packet, which does not
// depend on when the program runs.
func listenMedia(to *hosts.Host, address netip.Addr) (sink *net.UDPConn, err error) {
	err = to.Do(func() (err error) {
		sink, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(address, 0)))
		return err
	})
	if err != nil {
		return nil, err
	}
	raw, err := sink.SyscallConn()
	if err == nil {
		controlErr := raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1)
		})
		err = errors.Join(controlErr, err)
	}
	if err != nil {
		sink.Close()
		return nil, err
	}
	return sink, nil
}

// send sends numbered packets with their time, a frame at once, and returns the time of
// each.
func (m Media) send(ctx context.Context, begin time.Time, source *net.UDPConn) (sentAt []time.Time, err error) {
	perFrame := max(1, int(float64(m.RateBps)*m.Frame.Seconds()/8/mediaPacketBytes))
	packet := make([]byte, mediaPacketBytes-udpOverIPv4Bytes)
	for frame := 0; ; frame++ {
		timer := time.NewTimer(time.Until(begin.Add(time.Duration(frame) * m.Frame)))
		select {
		case <-ctx.Done():
			timer.Stop()
			return sentAt, nil
		case <-timer.C:
		}
		for range perFrame {
			now := time.Now()
			binary.BigEndian.PutUint32(packet, uint32(len(sentAt)))
			binary.BigEndian.PutUint64(packet[4:], uint64(now.UnixNano()))
			if _, err := source.Write(packet); err != nil {
				return nil, err
			}
			sentAt = append(sentAt, now)
		}
	}
}

// receiveMedia returns the delay of each packet until the socket is closed.
func receiveMedia(sink *net.UDPConn) map[uint32]time.Duration {
	delays := map[uint32]time.Duration{}
	packet, control := make([]byte, mediaPacketBytes), make([]byte, 128)
	for {
		n, controlBytes, _, _, err := sink.ReadMsgUDP(packet, control)
		if err != nil {
			return delays
		}
		at := time.Now().UnixNano()
		if stamped, ok := kernelTime(control[:controlBytes]); ok {
			at = stamped
		}
		if n >= 12 {
			delays[binary.BigEndian.Uint32(packet)] = time.Duration(at - int64(binary.BigEndian.Uint64(packet[4:])))
		}
	}
}

// kernelTime returns the time of arrival from a packet's control messages, in ns since
// 1970.
func kernelTime(control []byte) (ns int64, ok bool) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return 0, false
	}
	for _, m := range messages {
		if m.Header.Level != unix.SOL_SOCKET || m.Header.Type != unix.SCM_TIMESTAMPNS || len(m.Data) < 16 {
			continue
		}
		return int64(binary.NativeEndian.Uint64(m.Data))*1e9 + int64(binary.NativeEndian.Uint64(m.Data[8:])), true
	}
	return 0, false
}

// mediaOutcome summarizes a flow. Packets of the last second are not lost: they may be in
// flight.
func mediaOutcome(sentAt []time.Time, delays map[uint32]time.Duration) MediaOutcome {
	o := MediaOutcome{Packets: len(sentAt), Lost: None, DelayP50Ms: None, DelayP99Ms: None}
	if len(sentAt) == 0 {
		return o
	}
	last := sentAt[len(sentAt)-1].Add(-settle)
	settled, lost := 0, 0
	var arrived []float64
	for number, at := range sentAt {
		delay, ok := delays[uint32(number)]
		if ok {
			arrived = append(arrived, milliseconds(delay))
		}
		if at.Before(last) {
			settled++
			if !ok {
				lost++
			}
		}
	}
	if settled > 0 {
		o.Lost = Value(float64(lost) / float64(settled))
	}
	if len(arrived) > 0 {
		slices.Sort(arrived)
		o.DelayP50Ms, o.DelayP99Ms = Value(arrived[len(arrived)/2]), Value(arrived[len(arrived)*99/100])
	}
	return o
}
