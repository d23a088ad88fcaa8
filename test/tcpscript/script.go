// Package tcpscript drives TCP connections by a small language of steps, to
// test systems between their ends. A script names its actors freely:
//
//	# the client ends first and still gets its reply
//	target listens
//	client connects
//	target accepts
//	client sends 1K
//	client ends
//	target expects 1K, end
//	target sends 1M
//	target ends
//	client expects 1M, end within 5s
//
// Steps run one after the other. Sending does not wait: the bytes go out in the
// background, in order, while later steps run. Received bytes are compared with
// the other end's stream.
//
// The steps are
//
//	A listens                  open the listening socket
//	A connects                 connect to the address under test
//	A accepts                  take the next connection of the listening socket
//	A sends SIZE               queue bytes to send (100, 64K, 1M, 2G)
//	A flushes                  wait until all of A's bytes are acknowledged
//	A ends                     end A's stream after the queued bytes
//	A closes                   close both directions after the queued bytes
//	A resets                   reset at once; queued bytes are lost
//	A expects ITEM, ITEM, ...  read and compare with the items in order:
//	    SIZE                   so many bytes
//	    any                    any number of correct bytes, or none
//	    end                    the end of the stream
//	    reset                  a reset of the connection
//	    silence                nothing, for the step's whole time
//	waits DURATION             let time pass
//	does NAME                  call a function of the test
//
// Steps that wait fail after "within DURATION" at their end, or after
// Env.Within. Empty lines and text after # are ignored.
package tcpscript

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Script is a parsed script.
type Script struct {
	steps []step
}

// verb is the action of a step.
type verb string

const (
	listens  verb = "listens"
	connects verb = "connects"
	accepts  verb = "accepts"
	sends    verb = "sends"
	flushes  verb = "flushes"
	ends     verb = "ends"
	closes   verb = "closes"
	resets   verb = "resets"
	expects  verb = "expects"
	waits    verb = "waits"
	does     verb = "does"
)

// step is one line.
type step struct {
	line   int // from 1
	text   string
	actor  string
	verb   verb
	size   int64         // of sends
	items  []item        // of expects
	name   string        // of does
	within time.Duration // 0: Env.Within; for waits, the duration
}

// itemKind is the kind of an expectation's item.
type itemKind uint8

const (
	wantBytes itemKind = iota
	wantAny
	wantEnd
	wantReset
	wantSilence
)

// item is one item of an expectation.
type item struct {
	kind itemKind
	size int64 // of wantBytes
}

// Parse parses a script. An error names the line.
func Parse(text string) (Script, error) {
	var s Script
	for i, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		st, err := parseStep(words)
		if err != nil {
			return Script{}, fmt.Errorf("line %d: %w", i+1, err)
		}
		st.line, st.text = i+1, strings.Join(words, " ")
		s.steps = append(s.steps, st)
	}
	if len(s.steps) == 0 {
		return Script{}, errors.New("the script has no steps")
	}
	return s, nil
}

// MustParse is Parse for scripts in the program.
func MustParse(text string) Script {
	s, err := Parse(text)
	if err != nil {
		panic(err)
	}
	return s
}

func parseStep(words []string) (step, error) {
	switch verb(words[0]) {
	case waits:
		if len(words) != 2 {
			return step{}, errors.New("write: waits DURATION")
		}
		d, err := parseDuration(words[1])
		return step{verb: waits, within: d}, err
	case does:
		if len(words) != 2 {
			return step{}, errors.New("write: does NAME")
		}
		return step{verb: does, name: words[1]}, nil
	}
	if len(words) < 2 {
		return step{}, fmt.Errorf("%q is not a step", words[0])
	}
	st := step{actor: words[0], verb: verb(words[1])}
	args := words[2:]
	if n := len(args); n >= 2 && args[n-2] == "within" {
		d, err := parseDuration(args[n-1])
		if err != nil {
			return step{}, err
		}
		st.within, args = d, args[:n-2]
	}
	var err error
	switch st.verb {
	case sends:
		if len(args) != 1 {
			return step{}, errors.New("write: ACTOR sends SIZE")
		}
		st.size, err = parseSize(args[0])
	case expects:
		st.items, err = parseItems(strings.Join(args, " "))
	case listens, connects, accepts, flushes, ends, closes, resets:
		if len(args) > 0 {
			err = fmt.Errorf("%q takes no %q", st.verb, args[0])
		}
	default:
		err = fmt.Errorf("unknown verb %q", st.verb)
	}
	if st.within > 0 && (st.verb == sends || st.verb == ends || st.verb == closes || st.verb == resets || st.verb == listens) {
		err = fmt.Errorf("%q does not wait, so it takes no \"within\"", st.verb)
	}
	return st, err
}

func parseItems(text string) ([]item, error) {
	var items []item
	for _, word := range strings.Split(text, ",") {
		var it item
		switch word = strings.TrimSpace(word); word {
		case "any":
			it.kind = wantAny
		case "end":
			it.kind = wantEnd
		case "reset":
			it.kind = wantReset
		case "silence":
			it.kind = wantSilence
		default:
			size, err := parseSize(word)
			if err != nil {
				return nil, fmt.Errorf("expect a size, any, end, reset or silence, not %q", word)
			}
			it = item{kind: wantBytes, size: size}
		}
		items = append(items, it)
	}
	for i, it := range items {
		last := i == len(items)-1
		if it.kind == wantAny && (last || items[i+1].kind != wantEnd && items[i+1].kind != wantReset) {
			return nil, errors.New("after any comes end or reset")
		}
		if it.kind > wantAny && !last {
			return nil, errors.New("nothing comes after end, reset or silence")
		}
	}
	return items, nil
}

// maxSize bounds a size, in bytes: 1 TiB.
const maxSize = 1 << 40

func parseSize(word string) (int64, error) {
	shift, digits := 0, word
	for suffix, s := range map[string]int{"K": 10, "M": 20, "G": 30} {
		if d, ok := strings.CutSuffix(word, suffix); ok {
			shift, digits = s, d
		}
	}
	n, err := strconv.ParseUint(digits, 10, 40)
	if err != nil || n == 0 || n<<shift > maxSize {
		return 0, fmt.Errorf("invalid size %q: write a number of bytes such as 100, 64K, 1M or 2G", word)
	}
	return int64(n << shift), nil
}

func parseDuration(word string) (time.Duration, error) {
	d, err := time.ParseDuration(word)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("invalid duration %q: write 500ms, 3s or 2m", word)
	}
	return d, nil
}
