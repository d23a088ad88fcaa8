package measure

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"longhaul/internal/sys/tcpinfo"
)

// Timed is a stream at a moment, as the system of one of its ends has it.
// What is not known of the fields beside Info is -1.
type Timed struct {
	At    time.Duration // since the start that counts; negative in what does not
	Bytes int64         // written or read there since data began to move
	// SendBuffer is the bound on the socket's memory for what was written and
	// not yet acknowledged, overhead included, and SendQueued what is used of
	// it; bytes.
	SendBuffer, SendQueued int64
	CPU                    time.Duration // user and system time of the whole process
	Info                   tcpinfo.Info
}

// timedJSON is Timed in the protocol.
type timedJSON struct {
	At         int64        `json:"at_us"`
	Bytes      int64        `json:"bytes"`
	SendBuffer int64        `json:"send_buffer"`
	SendQueued int64        `json:"send_queued"`
	CPU        int64        `json:"cpu_us"`
	Info       tcpinfo.Info `json:"tcp_info"`
}

// MarshalJSON gives times in whole microseconds.
func (t Timed) MarshalJSON() ([]byte, error) {
	return json.Marshal(timedJSON{t.At.Microseconds(), t.Bytes, t.SendBuffer, t.SendQueued, t.CPU.Microseconds(), t.Info})
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (t *Timed) UnmarshalJSON(b []byte) error {
	var v timedJSON
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	*t = Timed{time.Duration(v.At) * time.Microsecond, v.Bytes, v.SendBuffer, v.SendQueued, time.Duration(v.CPU) * time.Microsecond, v.Info}
	return nil
}

// Bounds of what is kept of a test, and sent, in samples.
const (
	maxSamples    = 600  // of a stream
	maxAllSamples = 3000 // of all streams of a test
	minSampling   = 10 * time.Millisecond
	maxSampling   = time.Minute
)

// series are the samples of a stream's sending end over a test. Where they
// become too many every other one is given up, and from then on only every
// second, fourth and so on is kept.
type series struct {
	room   int
	kept   []Timed
	stride int // of so many samples one is kept
	seen   int

	before *Timed // the one before, kept or not
	events int64  // congestion events in what counts
}

func newSeries(streams int) *series {
	return &series{room: min(maxSamples, maxAllSamples/max(streams, 1)), stride: 1}
}

func (s *series) add(t Timed) {
	s.count(t)
	if s.seen%s.stride == 0 {
		if len(s.kept) == s.room {
			for i := range (s.room + 1) / 2 {
				s.kept[i] = s.kept[2*i]
			}
			s.kept = s.kept[:(s.room+1)/2]
			s.stride *= 2
		}
		if s.seen%s.stride == 0 {
			s.kept = append(s.kept, t)
		}
	}
	s.seen++
}

// count looks for a congestion event since the sample before.
func (s *series) count(t Timed) {
	if s.before != nil && s.before.At >= 0 && congestionEvent(&s.before.Info, &t.Info) {
		s.events++
	}
	s.before = &t
}

// end adds the last sample, which is kept in any case.
func (s *series) end(t Timed) {
	s.count(t)
	if len(s.kept) == s.room {
		s.kept = s.kept[:s.room-1]
	}
	s.kept = append(s.kept, t)
}

// watchKernel samples what the kernel says of the streams that send until the
// context ends, and then of all.
func (t *test) watchKernel(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	sending := 0
	for _, s := range t.streams {
		if s.sends {
			sending++
		}
	}
	for _, s := range t.streams {
		s.series = newSeries(sending)
	}
	for {
		for _, s := range t.streams {
			if s.sends {
				if now, ok := s.timed(t.start); ok {
					s.series.add(now)
				}
			}
		}
		select {
		case <-tick.C:
			continue
		case <-ctx.Done():
		}
		for _, s := range t.streams {
			if now, ok := s.timed(t.start); ok {
				s.last = &now
				if s.sends {
					s.series.end(now)
				}
			}
		}
		return
	}
}

// timed is the stream now. It is not known but on Linux.
func (s *stream) timed(start time.Time) (t Timed, ok bool) {
	t = Timed{Bytes: s.bytes.Load(), SendBuffer: -1, SendQueued: -1, CPU: -1}
	_ = s.raw.Control(func(fd uintptr) { ok = fillTimed(int(fd), &t) })
	if used := startCPU(); used.known {
		t.CPU = used.user + used.system
	}
	t.At = time.Since(start)
	return t, ok
}

// packed are samples as the protocol carries them: JSON, of which gzip leaves a
// tenth. The paths that are measured are slow ones.
type packed []Timed

// maxUnpacked bounds what a message's samples of a stream may unpack to. A
// sample has some 1100 bytes.
const maxUnpacked = 4096 * maxSamples

// MarshalJSON packs.
func (p packed) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if err := json.NewEncoder(z).Encode([]Timed(p)); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return json.Marshal(b.Bytes())
}

// UnmarshalJSON unpacks, and checks what a caller relies on.
func (p *packed) UnmarshalJSON(text []byte) error {
	var b []byte
	if err := json.Unmarshal(text, &b); err != nil {
		return err
	}
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return err
	}
	// One by one: a few packed bytes may be very many samples.
	decoder := json.NewDecoder(io.LimitReader(z, maxUnpacked))
	if bracket, err := decoder.Token(); err != nil || bracket != json.Delim('[') {
		return errors.New("samples that are no list")
	}
	var samples []Timed
	for decoder.More() {
		var one Timed
		if err := decoder.Decode(&one); err != nil {
			return err
		}
		switch n := len(samples); {
		case n == maxSamples:
			return fmt.Errorf("more than %d samples of a stream", maxSamples)
		case n > 0 && one.At < samples[n-1].At:
			return fmt.Errorf("sample %d is older than the one before", n)
		}
		samples = append(samples, one)
	}
	if _, err := decoder.Token(); err != nil {
		return err
	}
	*p = samples
	return nil
}

// longhaulParameters are what a longhaul asks of another besides. Others pass
// over them.
type longhaulParameters struct {
	SampleEvery int    `json:"sample_every_ms"`
	Token       string `json:"token,omitempty"` // the name of the one that it can show
}

// longhaulResults are what a longhaul answers to them.
type longhaulResults struct {
	Version string           `json:"version"`
	CPU     int64            `json:"cpu_us"` // user and system time over the test
	Streams []longhaulStream `json:"streams"`
}

type longhaulStream struct {
	ID               int    `json:"id"`
	Last             *Timed `json:"last,omitempty"`    // of a stream either way
	Samples          packed `json:"samples,omitempty"` // of a stream that was sent from there
	CongestionEvents int64  `json:"congestion_events"` // of such a stream
}

// longhaulResults are what this side tells of its ends.
func (all streams) longhaulResults(version string, cpu time.Duration) *longhaulResults {
	r := &longhaulResults{Version: version, CPU: cpu.Microseconds()}
	for _, s := range all {
		r.Streams = append(r.Streams, longhaulStream{s.id, s.last, s.series.kept, s.series.events})
	}
	return r
}
