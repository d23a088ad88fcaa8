// An ended flow.
import { get, Live } from '../live.js';
import { flowParts } from './flow.js';

export default function record(content, frame, id) {
  frame.title('Record ' + id);
  const parts = flowParts(content, 'Record ' + id);
  get('records/' + id).then((r) => parts.record(r), frame.trouble);
  const live = new Live({ view: 'head' }, (data) => frame.seen(data.head), frame.trouble);
  return { close() { live.close(); parts.close(); } };
}
