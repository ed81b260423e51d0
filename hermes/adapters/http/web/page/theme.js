// Runs before the first paint, so that the page never flashes in the other colours.
{
  const theme = localStorage.getItem("hermes.theme");
  if (theme) document.documentElement.dataset.theme = theme;
}
