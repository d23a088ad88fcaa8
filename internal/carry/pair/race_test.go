//go:build race

package pair

const raceDetector = true
