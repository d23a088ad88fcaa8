package main

import (
	"fmt"

	"longhaul/internal/doctor"
)

// note tells of what could not be done.
func note(env *env, err error) { fmt.Fprintf(env.stderr, "longhaul: %v\n", err) }

// tell prints the report.
func (f *doctorFlags) tell(env *env, o doctor.Observation) error {
	report, err := doctor.Diagnose(o)
	if err != nil {
		return err
	}
	if f.json {
		return writeJSON(env.stdout, report)
	}
	fmt.Fprintf(env.stdout, "%s\n", report.Cause)
	for _, finding := range report.Findings {
		fmt.Fprintf(env.stdout, "%s: %v\n", finding.Cause, finding.Evidence)
	}
	return nil
}
