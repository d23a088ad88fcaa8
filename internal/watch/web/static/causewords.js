import { unknown } from './format.js';

// Causes in words: a short name and its meaning.
const causeWords = {
  'healthy': ['nothing', 'It fills its path.'],
  'application': ['the sender’s program', 'The sending program has nothing to send. The network is not what limits it.'],
  'reader': ['the reader', 'The receiving program reads slowly. The network is not what limits it.'],
  'nagle': ['held-back pieces', 'The sending program writes messages in pieces, and TCP holds each last piece back until an acknowledgement comes.'],
  'receiver-window': ['receiver’s window', 'The receiving host allows too little data under way for this distance.'],
  'window-scaling': ['no window scaling', 'The two hosts use no window scaling, which holds a connection back over this distance.'],
  'send-buffer': ['send buffer', 'The sending socket’s buffer is too small for this distance.'],
  'loss': ['lost packets', 'The path loses packets, by chance or above a rate, and the sender takes that for congestion.'],
  'stall': ['no acknowledgements', 'Data wait for an acknowledgement, and the sender repeats them: large packets vanish, or the path is down.'],
  'random-loss': ['random loss', 'The path loses packets by chance, and the sender takes that for congestion.'],
  'congestion': ['a full path', 'The path is full: a queue builds up before its narrowest part.'],
  'policer': ['a policer', 'Something on the path drops what exceeds a rate.'],
  'reordering': ['reordering', 'The path changes the order of packets, and the sender takes that for loss.'],
  'spurious-retransmissions': ['needless repeats', 'The sender repeats what has arrived, and slows down for it.'],
  'segment-size': ['small segments', 'Packets are smaller than the path carries.'],
  'black-hole': ['a black hole', 'Large packets vanish on the path, and nobody tells the sender.'],
  'asymmetric-mtu': ['small way back', 'Packets are as small as the way back needs them.'],
  'pacing': ['its own pacing', 'The sender holds the connection to a rate by itself.'],
  'short-flow': ['shortness', 'It was too short to get up to speed over this distance.'],
  'cpu': ['CPU time', 'The program’s busiest thread has no CPU time left.'],
  'outage': ['an outage', 'Nothing gets through: the path is down, or something on it has forgotten the connection.'],
  'reset': ['a reset', 'One of the two hosts cut the transfer.'],
  'pair-down': ['a pair that is down', 'The two relays of the pair have no session.'],
  'unexplained': ['unexplained', 'Nothing that was seen explains it.'],
};

export function causeName(cause) {
  return cause ? (causeWords[cause]?.[0] ?? cause) : unknown;
}

export function causeSentence(cause) {
  return causeWords[cause]?.[1] ?? '';
}

export const allCauses = Object.keys(causeWords);
