package main

import (
	"context"
	"errors"

	"longhaul/internal/doctor"
)

func (f *doctorFlags) active(ctx context.Context, env *env, host string) (doctor.Observation, error) {
	return doctor.Observation{}, errors.New("to be written")
}
