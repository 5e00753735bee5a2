"""A library that starts a thread when it is imported, as some builds of torch do."""

import threading

threading.Thread(target=threading.Event().wait, daemon=True).start()
