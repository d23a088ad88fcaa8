package web

// MaxSessions is the maximum number of sessions of a token.
const MaxSessions = maxSessions
