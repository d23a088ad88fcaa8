package main

import (
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"testing"

	"longhaul/test/nettest"
)

// Bounds of the program: what it has today and some percent. What raises one belongs
// into the commit that raises it.
const (
	// maxSizeBytes is for the program as go run links it, without symbols. It has the C
	// library's resolver and longer names of files, 0.15 MB more than a release.
	maxSizeBytes = 29_900_000
	// maxInitBytes is what the initialisers of all packages allocate in every command.
	maxInitBytes = 470_000
)

// TestSize holds the size of the program.
func TestSize(t *testing.T) {
	if os.Getenv("LONGHAUL_BINARY") != "" || runtime.GOARCH != "amd64" {
		t.Skip("needs a program that this test links, for amd64")
	}
	info, err := os.Stat(nettest.Longhaul(t))
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > maxSizeBytes {
		t.Errorf("the program has %d bytes, more than %d: see what a new import brings (go tool nm -size -sort size)", info.Size(), maxSizeBytes)
	}
}

var initialiser = regexp.MustCompile(`(?m)^init (\S+) @.* clock, (\d+) bytes, \d+ allocs$`)

// TestInitialisers holds what packages allocate before main: tables and regular
// expressions that most commands do not use are made when they are needed.
func TestInitialisers(t *testing.T) {
	cmd := exec.Command(nettest.Longhaul(t), "version")
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	all := initialiser.FindAllStringSubmatch(string(out), -1)
	if len(all) < 10 {
		t.Fatalf("%d initialisers:\n%s", len(all), out)
	}
	sum, most, name := 0, 0, ""
	for _, one := range all {
		n, err := strconv.Atoi(one[2])
		nettest.Must(t, err)
		if sum += n; n > most {
			most, name = n, one[1]
		}
	}
	if sum > maxInitBytes {
		t.Errorf("initialisers allocate %d bytes, more than %d; %s the most, %d", sum, maxInitBytes, name, most)
	}
}
