package kernel

import (
	"errors"
	"fmt"
	"strings"
)

// RejectedError reports that this kernel's BPF verifier rejects a program. Its text is
// one sentence.
type RejectedError struct {
	ErrUnsupported
	Log []string // the verifier's, whole
}

func (e *RejectedError) Unwrap() error { return &e.ErrUnsupported }

// Rejected returns the error for a program that the verifier rejects. since is the
// release that accepts it: "Linux 6.0"; log is the verifier's.
func Rejected(feature, since string, cause error, log []string) *RejectedError {
	needs := fmt.Sprintf("a kernel whose BPF verifier accepts it (%s or newer should): %s", since, verdict(cause, log))
	return &RejectedError{ErrUnsupported{feature, needs}, log}
}

// VerifierLog returns the BPF verifier's log of a rejected program; empty for other
// errors.
func VerifierLog(err error) string {
	var rejected *RejectedError
	if !errors.As(err, &rejected) {
		return ""
	}
	return strings.Join(rejected.Log, "\n")
}

// verdict returns the verifier's reason: the last line of its log before the
// statistics.
func verdict(cause error, log []string) string {
	for i := len(log) - 1; i >= 0; i-- {
		line := strings.TrimSpace(log[i])
		if line != "" && !strings.HasPrefix(line, "processed ") && !strings.HasPrefix(line, "verification time") {
			return line
		}
	}
	return cause.Error()
}
