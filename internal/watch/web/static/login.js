// The URL's parameters: the next page, and whether the last attempt failed.
const query = new URLSearchParams(location.search);
const next = query.get('next');
if (next) document.forms[0].action = '/login?next=' + encodeURIComponent(next);
document.getElementById('wrong').hidden = !query.has('wrong');
