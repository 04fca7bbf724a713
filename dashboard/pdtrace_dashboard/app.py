"""The app's frame: `streamlit run app.py`. Navigation, filter bar, then the page.

Owns the order of these three. Pages are files, so that one can switch to another.
"""

from __future__ import annotations

import streamlit as st

from pdtrace_dashboard import sidebar

st.set_page_config(page_title="pdtrace", layout="wide")

# Page files are not in a folder named `pages`: Streamlit would run those itself, without this file, when the first
# viewer after a start opens a link to one of them.
# no page icons: Streamlit makes them the favicon, which the browser would fetch from a font server
page = st.navigation(
    [
        st.Page("screens/live.py", title="Live", default=True),
        st.Page("screens/ttft.py", title="TTFT"),
        st.Page("screens/requests.py", title="Requests"),
        st.Page("screens/request.py", title="Request"),
        st.Page("screens/health.py", title="Health"),
    ],
    position="top",
)
#: How often the whole script ran in this session; the Live page shows that its refresh does not add to it.
st.session_state["page_runs"] = st.session_state.get("page_runs", 0) + 1
st.html("<style>.stMainBlockContainer {padding: 4rem 2.5rem 3rem}</style>")
sidebar.show()
page.run()
