"""The app's frame: `streamlit run app.py`. Navigation, filter bar, then the page.

Owns the order of these three. Pages are files, so that one can switch to another.
"""

from __future__ import annotations

import streamlit as st

from pdtrace_dashboard import sidebar

st.set_page_config(page_title="pdtrace", page_icon=":material/timeline:", layout="wide")

page = st.navigation(
    [
        st.Page("pages/live.py", title="Live", icon=":material/monitor_heart:", default=True),
        st.Page("pages/ttft.py", title="TTFT", icon=":material/stacked_bar_chart:"),
        st.Page("pages/requests.py", title="Requests", icon=":material/list:"),
        st.Page("pages/request.py", title="Request", icon=":material/timeline:"),
        st.Page("pages/health.py", title="Health", icon=":material/health_and_safety:"),
    ],
    position="top",
)
#: How often the whole script ran in this session; the Live page shows that its refresh does not add to it.
st.session_state["page_runs"] = st.session_state.get("page_runs", 0) + 1
sidebar.show()
page.run()
