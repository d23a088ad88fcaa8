// Before the first paint: the theme chosen here, or the system's.
try {
  const chosen = localStorage.getItem('longhaul-theme');
  if (chosen === 'light' || chosen === 'dark') document.documentElement.dataset.theme = chosen;
} catch { /* without storage, use the system's theme */ }
