package tcpinfo

// Field identifies a field of Info, for Has.
type Field uint8

// The fields of Info, in its order.
const (
	FieldState Field = iota
	FieldCAState
	FieldOptions
	FieldRetransmits
	FieldProbes
	FieldBackoff
	FieldSndWScale
	FieldRcvWScale
	FieldRTO
	FieldATO
	FieldSndMSS
	FieldRcvMSS
	FieldAdvMSS
	FieldPMTU
	FieldUnacked
	FieldSacked
	FieldLost
	FieldRetrans
	FieldReordering
	FieldLastDataSent
	FieldLastDataRecv
	FieldLastAckRecv
	FieldRTT
	FieldRTTVar
	FieldRcvRTT
	FieldMinRTT
	FieldSndCwnd
	FieldSndSSThresh
	FieldRcvSSThresh
	FieldRcvSpace
	FieldSndWnd
	FieldRcvWnd
	FieldTotalRetrans
	FieldPacingRateBps
	FieldMaxPacingRateBps
	FieldBytesAcked
	FieldBytesReceived
	FieldSegsOut
	FieldSegsIn
	FieldNotsentBytes
	FieldDataSegsIn
	FieldDataSegsOut
	FieldDeliveryRateBps
	FieldDeliveryRateAppLimited
	FieldBusyTime
	FieldRwndLimited
	FieldSndbufLimited
	FieldDelivered
	FieldDeliveredCE
	FieldBytesSent
	FieldBytesRetrans
	FieldDSACKDups
	FieldReordSeen
	FieldRcvOOOPack
	FieldRehash
	FieldTotalRTO
	FieldTotalRTORecoveries
	FieldTotalRTOTime

	fieldCount
)

// Info.known has 64 bits.
const _ = uint(64 - fieldCount)
