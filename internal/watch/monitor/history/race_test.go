//go:build race

package history

func init() { raceDetector = true }
