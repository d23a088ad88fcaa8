//go:build race

package pair_test

const raceDetector = true
