// Before anything is painted: the theme that was chosen here, or the system's.
try {
  const chosen = localStorage.getItem('longhaul-theme');
  if (chosen === 'light' || chosen === 'dark') document.documentElement.dataset.theme = chosen;
} catch { /* storage is switched off: the system's theme it is */ }
