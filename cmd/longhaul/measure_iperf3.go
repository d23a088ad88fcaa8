package main

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"longhaul/internal/words/remedy"
)

// iperf3Letters are iperf3's letters for flags of measure that mean the same.
var iperf3Letters = map[string]string{
	"client": "c", "serve": "s", "port": "p",
	"time": "t", "bytes": "n", "streams": "P", "receive": "R", "omit": "O", "interval": "i",
	"window": "w", "write": "l", "mss": "M", "no-delay": "N", "cc": "C", "pacing-rate": "b",
	"json": "J",
}

// addWithLetters adds flags to a command, with iperf3's letters.
func addWithLetters(cmd *cobra.Command, flags *pflag.FlagSet) {
	flags.VisitAll(func(f *pflag.Flag) {
		f.Shorthand = iperf3Letters[f.Name]
		cmd.Flags().AddFlag(f)
	})
}

// iperf3Flags are iperf3's flags that measure has under another name.
var iperf3Flags = []struct{ letter, name, instead string }{
	{"u", "udp", "leave it out: longhaul measures TCP only"},
	{"", "bidir", "use --both"},
	{"", "reverse", "use --receive, or -R"},
	{"", "parallel", "use --streams N, or -P N"},
	{"", "length", "use --write SIZE, or -l SIZE"},
	{"", "set-mss", "use --mss BYTES, or -M BYTES"},
	{"", "congestion", "use --cc NAME, or -C NAME"},
	{"", "linux-congestion", "use --cc NAME, or -C NAME"},
	{"", "bitrate", "use --pacing-rate RATE, or -b RATE"},
	{"", "bandwidth", "use --pacing-rate RATE, or -b RATE"},
	{"", "fq-rate", "use --pacing-rate RATE, or -b RATE"},
	{"k", "blockcount", "use --bytes SIZE: the blocks times the size of a write"},
	{"", "server", "use --serve, or -s"},
	{"D", "daemon", "run longhaul measure --serve from a service of systemd, or in the background"},
	{"", "cntl-ka", "use --timeout DURATION: it bounds the wait for the other side"},
	{"", "server-max-duration", "use --max-time DURATION"},
	{"", "server-bitrate-limit", "use --max-time, --max-streams and --max-window"},
	{"B", "bind", "for a server use --listen ADDRESS; a client's address is the route's (ip route, src)"},
	{"", "bind-dev", "choose the device by a route (ip route, dev), or use --netns NAME"},
	{"4", "version4", "give the host's IPv4 address for its name"},
	{"6", "version6", "give the host's IPv6 address for its name"},
	{"A", "affinity", "use taskset -c CPU longhaul measure"},
	{"", "json-stream", "use --csv for a line per interval, or --json"},
	{"", "json-stream-full-output", "use --csv for a line per interval, or --json"},
	{"", "logfile", "redirect the output: > FILE"},
	{"", "timestamps", "pipe the output through ts, of moreutils"},
	{"", "connect-timeout", "use --timeout DURATION"},
	{"", "rcv-timeout", "use --timeout DURATION"},
	{"", "snd-timeout", "use --timeout DURATION"},
	{"", "username", "use --token FILE"},
	{"", "rsa-public-key-path", "use --token FILE"},
	{"", "rsa-private-key-path", "use --tokens FILE"},
	{"", "authorized-users-path", "use --tokens FILE"},
	{"", "use-pkcs1-padding", "use --token FILE, or --tokens FILE at the server"},
	{"", "time-skew-threshold", "use --tokens FILE, which needs no clock"},
	{"v", "", "see longhaul version"},
}

// explainFlag returns the error for an iperf3 flag that measure does not have, and for a
// bad number. It leaves other mistakes to the parent command.
func explainFlag(cmd *cobra.Command, err error) error {
	var value *pflag.InvalidValueError
	var number *strconv.NumError
	if errors.As(err, &value) && errors.As(err, &number) {
		err = fmt.Errorf("invalid number %q for --%s", value.GetValue(), value.GetFlag().Name)
		return usageError(remedy.New(err, "write a whole number, see longhaul measure --help"))
	}
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		name, isLetter := unknown.GetSpecifiedName(), unknown.GetSpecifiedShortnames() != ""
		for _, f := range iperf3Flags {
			given := "--" + f.name
			if isLetter {
				given = "-" + f.letter
			}
			if isLetter && f.letter == name || !isLetter && f.name != "" && f.name == name {
				return usageError(remedy.New(fmt.Errorf("%s of iperf3 is no flag of longhaul measure", given), f.instead))
			}
		}
	}
	return cmd.Parent().FlagErrorFunc()(cmd, err)
}
