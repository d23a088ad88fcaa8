package kernel

var LoopbackID = loopbackID
