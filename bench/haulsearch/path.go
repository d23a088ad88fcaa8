package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// A setting is a key of haulsim with its value. Times of day are seconds, round
// trips milliseconds, rates Mb/s, queues BDP: the units of haulsim's command line.
type setting struct {
	key   string
	value float64
}

// placeAfter is the value of the key "place" that puts the loss behind the
// bottleneck.
const placeAfter = 1

func (s setting) String() string {
	if s.key == "place" {
		if s.value == placeAfter {
			return "place=after"
		}
		return "place=before"
	}
	return s.key + "=" + number(s.value)
}

func number(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// Settings are in the order of the command line, each key at most once.
type settings []setting

func (s settings) get(key string) (value float64, present bool) {
	for _, one := range s {
		if one.key == key {
			return one.value, true
		}
	}
	return 0, false
}

// or is the value of a key, or what holds without the key.
func (s settings) or(key string, otherwise float64) float64 {
	if v, present := s.get(key); present {
		return v
	}
	return otherwise
}

func (s *settings) set(key string, value float64) {
	for i := range *s {
		if (*s)[i].key == key {
			(*s)[i].value = value
			return
		}
	}
	*s = append(*s, setting{key, value})
}

func (s settings) words() []string {
	var words []string
	for _, one := range s {
		words = append(words, one.String())
	}
	return words
}

// A flow is one sender of a path.
type flow struct {
	control  string // haul, bbr3, cubic or cbr
	beginS   float64
	settings settings
}

func (f flow) String() string {
	s := f.control
	if f.beginS > 0 {
		s += "@" + number(f.beginS)
	}
	if len(f.settings) > 0 {
		s += ":" + strings.Join(f.settings.words(), ",")
	}
	return s
}

// A change gives the path other settings at a time. The first path returns at
// untilS, unless that is 0.
type change struct {
	atS, untilS float64
	settings    settings
}

func (c change) words() []string {
	words := append([]string{"at=" + number(c.atS)}, c.settings.words()...)
	if c.untilS > 0 {
		words = append(words, "until="+number(c.untilS))
	}
	return words
}

// A path is one input of haulsim: the settings of the first path with time and
// seed, the flows, the changes.
type path struct {
	settings settings
	flows    []flow
	changes  []change
}

// A window is a part of the simulated time.
type window struct{ fromS, toS float64 }

func (w window) String() string { return "over=" + number(w.fromS) + ":" + number(w.toS) }

// args are the words of haulsim's command line.
func (p path) args(over ...window) []string {
	args := p.settings.words()
	for _, f := range p.flows {
		args = append(args, f.String())
	}
	for _, c := range p.changes {
		args = append(args, c.words()...)
	}
	for _, w := range over {
		args = append(args, w.String())
	}
	return args
}

// command is the line that runs this path in a shell.
func (p path) command(over ...window) string {
	return strings.Join(append([]string{"haulsim"}, p.args(over...)...), " ")
}

func (p path) clone() path {
	c := path{settings: slices.Clone(p.settings), flows: slices.Clone(p.flows), changes: slices.Clone(p.changes)}
	for i := range c.flows {
		c.flows[i].settings = slices.Clone(c.flows[i].settings)
	}
	for i := range c.changes {
		c.changes[i].settings = slices.Clone(c.changes[i].settings)
	}
	return c
}

// What the first path has; haulsim's own values stand for missing keys.
func (p path) rateMbps() float64 { return p.settings.or("rate", 100) }
func (p path) rttMs() float64    { return p.settings.or("rtt", 300) }
func (p path) queueBDP() float64 { return p.settings.or("queue", 1) }
func (p path) loss() float64     { return p.settings.or("loss", 0) }
func (p path) timeS() float64    { return p.settings.or("time", 60) }

const (
	packetBytes  = 1500
	payloadBytes = 1448
)

func (p path) bdpPackets() float64 { return p.rateMbps() * p.rttMs() * 1e3 / 8 / packetBytes }

// queuePackets is how many packets the bottleneck's queue holds.
func (p path) queuePackets() float64 { return p.queueBDP() * p.bdpPackets() }

// last is the path that holds after all changes.
func (p path) last() path {
	l := path{settings: slices.Clone(p.settings), flows: p.flows}
	for _, c := range p.changes {
		if c.untilS == 0 {
			for _, s := range c.settings {
				l.settings.set(s.key, s.value)
			}
		}
	}
	return l
}

func (p path) count(control string) int {
	n := 0
	for _, f := range p.flows {
		if f.control == control {
			n++
		}
	}
	return n
}

// significant rounds to some significant digits.
func significant(v float64, digits int) float64 {
	if v == 0 {
		return 0
	}
	rounded, err := strconv.ParseFloat(strconv.FormatFloat(v, 'e', digits-1, 64), 64)
	if err != nil {
		return v
	}
	return rounded
}

// within says what is wrong with a value that is outside of a range.
func within(name string, v, least, most float64) error {
	if math.IsNaN(v) || v < least || v > most {
		return fmt.Errorf("%s of %s is not within %s and %s", name, number(v), number(least), number(most))
	}
	return nil
}
